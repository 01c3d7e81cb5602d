-- Read the history of one topic, or the sums over a shard. Read-only.
-- @flags no-writes
-- KEYS[1] history/10s | KEYS[2] history/5m, see publish_history.lua
-- KEYS[3] settings HASH topic -> JSON | KEYS[4..7] ZSET, the jobs by state: delayed, ready, reserved, dead |
--   KEYS[8] shelf; none of these for sums
-- ARGV[1] most records of 10 s | ARGV[2] most records of 5 min, the latest | ARGV[3] topic, for one
-- Returns { now ms, records of 10 s, records of 5 min, then for a topic: 1 when it is known, else 0; its delayed, ready,
--   reserved and dead jobs }
-- Bound: the records; the caller asks for at most 1000 of at most some 160 bytes.
local reply = {
  now_ms(), redis.call('LRANGE', KEYS[1], -ARGV[1], -1), redis.call('LRANGE', KEYS[2], -ARGV[2], -1),
}
if #KEYS > 2 then reply[4] = redis.call('HEXISTS', KEYS[3], ARGV[3]) end
for at = 4, #KEYS - 1 do reply[at + 1] = redis.call('ZCARD', KEYS[at]) end
if #KEYS > 3 then reply[5] = reply[5] + tonumber(redis.call('HGET', KEYS[8], 'jobs') or 0) end
return reply
