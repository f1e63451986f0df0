-- Publishes and records the messages of a batch, in their order: all or none, and once, even if it is called again.
-- KEYS[1] outcome log, KEYS[2] published:<token>, KEYS[3 ..] lists.
-- ARGV[1] number of the batch, ARGV[2] for how many ms it is remembered, ARGV[3] number of forms, ARGV[4] number of rules; then the
-- forms: each has an event's 20 values without the task id; then the rules, one for each queue that has bounds or expires:
-- `most,expiry,adds,lists` (the most messages that it may hold, or nothing; its expiry in ms, or nothing; how many this batch adds;
-- the indexes of its lists in KEYS); then for each message: the index of its list in KEYS, the number of its form, task id, gaps
-- for times or '', message.
-- Returns 'done', 'already' (a repeated or late call: this number or a later one was carried out), or 'full' (a queue has no room
-- for all: nothing has changed).
-- Bound: 100 messages, or a mebibyte of them and one message; ten lists for each queue.
-- Checked: every key that is written later is read first. If a step fails nevertheless, all is taken back.
-- uses: clock dated
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[1]) then return 'already' end
redis.call('XLEN', KEYS[1])
for at = 3, #KEYS do redis.call('LLEN', KEYS[at]) end

local forms, rules, expiring, at = {}, tonumber(ARGV[4]), {}, 5
for form = 1, tonumber(ARGV[3]) do
  forms[form] = {'XADD', KEYS[1], '*', 't', '', 'o', ARGV[at], 'g', ARGV[at + 1], 'n', ARGV[at + 2], 'q', ARGV[at + 3],
    'r', ARGV[at + 4], 'a', ARGV[at + 5], 'd', ARGV[at + 6], 'l', ARGV[at + 7], 'u', ARGV[at + 8], 'w', ARGV[at + 9],
    'x', ARGV[at + 10], 'f', ARGV[at + 11], 'R', ARGV[at + 12], 'p', ARGV[at + 13], 'N', ARGV[at + 14], 'b', ARGV[at + 15],
    'e', ARGV[at + 16], 'W', ARGV[at + 17], 'v', ARGV[at + 18], 'y', ARGV[at + 19]}
  at = at + 20
end
for rule = at, at + rules - 1 do
  local most, expiry, adds, lists = string.match(ARGV[rule], '^(%d*),(%d*),(%d+),(.*)$')
  local length = tonumber(adds)
  for list in string.gmatch(lists, '%d+') do
    length = length + redis.call('LLEN', KEYS[tonumber(list)])
    if expiry ~= '' then expiring[tonumber(list)] = expiry end
  end
  if most ~= '' and length > tonumber(most) then return 'full' end
end

local pushed, recorded = {}, {}
local function publish()
  for message = at + rules, #ARGV, 5 do
    local list, form = KEYS[tonumber(ARGV[message])], forms[tonumber(ARGV[message + 1])]
    redis.call('LPUSH', list, dated(ARGV[message + 4], ARGV[message + 3]))
    pushed[#pushed + 1] = list
    form[5] = ARGV[message + 2]
    recorded[#recorded + 1] = redis.call(unpack(form))
  end
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
local ok, err = pcall(publish)
if not ok then
  for message = #pushed, 1, -1 do redis.call('LPOP', pushed[message]) end
  for event = 1, #recorded do redis.call('XDEL', KEYS[1], recorded[event]) end
  return type(err) == 'table' and err or redis.error_reply(tostring(err))
end
for list, expiry in pairs(expiring) do redis.pcall('PEXPIRE', KEYS[list], expiry) end
return 'done'
