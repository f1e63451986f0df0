-- Stores a result that is never read, to find out whether results can be stored here.
-- ARGV[1..5] as in `result.lua`. Bound: one result.
-- uses: result
store_result(1)
