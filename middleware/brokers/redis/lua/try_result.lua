-- Stores a result that nobody asks for, which shows whether results may be stored here.
-- ARGV[1..5] as `result.lua` has it. Bound: one result.
-- Checked: nothing else is done.
-- uses: result
store_result(1)
