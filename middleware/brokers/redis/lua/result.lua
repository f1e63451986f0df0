-- Shared: stores a task's result, as Celery's Redis backend does in two calls.
-- ARGV from `first` on: the key, the text, the seconds until it expires ('' for never), and, if the backend's database is not the
-- broker's, the numbers of the backend's and the broker's databases. The key is not in KEYS, because each task has another one.
-- A stored success stays, as in Celery. Otherwise clients that wait for the result are notified.
local function is_success(stored)
  local read, meta = pcall(cjson.decode, stored)
  return read and type(meta) == 'table' and meta.status == 'SUCCESS'
end

local function store_result(first)
  local key, text, seconds, theirs = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  if theirs then redis.call('SELECT', theirs) end
  local stored = redis.call('GET', key)
  if not (stored and is_success(stored)) then
    if seconds == '' then redis.call('SET', key, text) else redis.call('SET', key, text, 'EX', seconds) end
    redis.call('PUBLISH', key, text)
  end
  if theirs then redis.call('SELECT', ARGV[first + 4]) end
end
