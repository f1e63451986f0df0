-- Shared: appends an event to the outcome log.
-- The field names and their order are always the same, so that the stream stores them only once in each block.
-- `first` is the index in ARGV of the first of the event's 21 values. `due` and `delay` (milliseconds), if given, replace the
-- caller's values.
local function append(stream, first, due, delay)
  local event = ARGV
  redis.call('XADD', stream, '*',
    't', event[first], 'o', event[first + 1], 'g', event[first + 2], 'n', event[first + 3],
    'q', event[first + 4], 'r', event[first + 5], 'a', event[first + 6], 'd', event[first + 7],
    'l', delay or event[first + 8], 'u', due or event[first + 9], 'w', event[first + 10], 'x', event[first + 11],
    'f', event[first + 12], 'R', event[first + 13], 'p', event[first + 14], 'N', event[first + 15],
    'b', event[first + 16], 'e', event[first + 17], 'W', event[first + 18], 'v', event[first + 19], 'y', event[first + 20])
end

