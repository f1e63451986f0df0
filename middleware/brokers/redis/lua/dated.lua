-- Shared: writes into a published message the times that count from its publication, by this server's clock.

-- The time as Python writes it: `2026-11-24T01:02:03.456+00:00` (Gregorian calendar, counted in eras of 400 years).
local function iso(ms)
  local days, rest = math.floor(ms / 86400000) + 719468, ms % 86400000
  local era, day = math.floor(days / 146097), days % 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local march = math.floor((5 * day + 2) / 153)
  local month = march < 10 and march + 3 or march - 9
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03d+00:00', year + era * 400 + (month <= 2 and 1 or 0), month,
    day - math.floor((153 * march + 2) / 5) + 1, math.floor(rest / 3600000), math.floor(rest / 60000) % 60,
    math.floor(rest / 1000) % 60, rest % 1000)
end

-- `gaps` has, for each time in the order of their places: the number of bytes before it, 'n' (a number: ms since the epoch) or 't'
-- (a text), and how many ms it is from now. It is '' if there is no time.
local function dated(message, gaps)
  if not gaps or gaps == '' then return message end
  local now, parts, from = now_ms(), {}, 1
  for before, form, ms in string.gmatch(gaps, '(%d+)([nt])(-?%d+)') do
    local at = now + tonumber(ms)
    parts[#parts + 1] = string.sub(message, from, tonumber(before))
    parts[#parts + 1] = form == 't' and iso(at) or string.format('%d', at)
    from = tonumber(before) + 1
  end
  parts[#parts + 1] = string.sub(message, from)
  return table.concat(parts)
end

