-- Note what a relay reports of itself and its outbox. Nothing of this outlives its time.
-- @flags allow-oom
-- KEYS[1] relays HASH name -> "ms first_ms worked_ms JSON": when it reported last and first, and last that it works (0:
--   never), see engine/inspection/relays.py
-- ARGV[1] name | ARGV[2] JSON | ARGV[3] 1 if it works, else 0 | ARGV[4] how long a report is kept, ms
-- ARGV[5] most relays to keep
-- Returns ms of the report
-- Bound: the relays, at most ARGV[5] and one; of more, the one that has not reported for the longest time goes.
local NAME, IS_WORKING, KEPT, MOST = ARGV[1], ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()
delete_if_damaged(KEYS[1], 'HDEL')
local _, first, worked = string.match(redis.call('HGET', KEYS[1], NAME) or '', '^(%d+) (%d+) (%d+) ')
local times = { now, first or now, IS_WORKING and now or worked or 0 }
redis.call('HSET', KEYS[1], NAME, string.format('%.0f %.0f %.0f %s', times[1], times[2], times[3], ARGV[2]))
redis.call('PEXPIRE', KEYS[1], KEPT)
local fields, count, oldest, oldest_ms = redis.call('HGETALL', KEYS[1]), 0, nil, math.huge
for at = 1, #fields, 2 do
  local reported = tonumber(string.match(fields[at + 1], '^(%d+) ')) or 0
  if math.abs(now - reported) >= KEPT then  -- also when the clock was set
    redis.call('HDEL', KEYS[1], fields[at])
  else
    count = count + 1
    if fields[at] ~= NAME and reported < oldest_ms then oldest, oldest_ms = fields[at], reported end
  end
end
if count > MOST then redis.call('HDEL', KEYS[1], oldest) end
return now
