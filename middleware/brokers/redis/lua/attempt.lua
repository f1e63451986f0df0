-- Shared: calls `add`, which writes to more than one key, and, if the server refuses a part, `undo`.
-- Returns nil, or the error to return. `undo` must take back whatever parts of `add` have succeeded.
local function attempt(add, undo)
  local added, err = pcall(add)
  if added then return nil end
  undo()
  return type(err) == 'table' and err or redis.error_reply(tostring(err))
end

