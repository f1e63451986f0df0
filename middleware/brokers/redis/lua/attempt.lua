-- Shared by the scripts that add to more than one place: adds, and where the server refuses a part of it, takes the rest back.
-- nil: added; else the error to return. What `undo` does must be possible wherever `add` was.
local function attempt(add, undo)
  local added, err = pcall(add)
  if added then return nil end
  undo()
  return type(err) == 'table' and err or redis.error_reply(tostring(err))
end

