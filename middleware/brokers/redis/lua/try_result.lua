-- Stores a result that is never read, to find out whether results may be stored here.
-- ARGV[1..5] as in `result.lua`. Bound: one result.
-- Checked: nothing else is done.
-- uses: result
store_result(1)
