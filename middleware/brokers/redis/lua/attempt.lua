-- Shared by the scripts that add to more than one key: adds, and if the server refuses a part, takes the other parts back.
-- nil: added; else the error to return. If a part of `add` succeeded, `undo` must be able to take it back.
local function attempt(add, undo)
  local added, err = pcall(add)
  if added then return nil end
  undo()
  return type(err) == 'table' and err or redis.error_reply(tostring(err))
end

