-- Take over tasks whose process has not extended its lease.
-- @flags allow-oom
-- KEYS[1] tasks/running ZSET id -> end of its lease, ms
-- ARGV[1] process | ARGV[2] lease, ms
-- Returns their ids
-- Bound: MOST tasks.
local RUNNING = KEYS[1]
local MOST = 10
local PREFIX = string.match(RUNNING, '^[^}]*}:') .. 'task/'
local now = now_ms()
local claimed = {}
delete_if_damaged(RUNNING)
for _, id in ipairs(redis.call('ZRANGE', RUNNING, '-inf', now, 'BYSCORE', 'LIMIT', 0, MOST)) do
  if redis.call('HGET', PREFIX .. id, 'state') ~= 'running' then
    redis.call('ZREM', RUNNING, id)
  else
    redis.call('ZADD', RUNNING, now + ARGV[2], id)
    redis.call('HSET', PREFIX .. id, 'owner', ARGV[1])
    claimed[#claimed + 1] = id
  end
end
return claimed
