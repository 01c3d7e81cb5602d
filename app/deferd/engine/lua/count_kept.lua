-- Count the jobs of many topics, in any state, with their follow-ups, and the tombstones of cancelled and of unique
-- jobs. Read-only.
-- @flags no-writes
-- KEYS[5n+1] pool HASH | KEYS[5n+2] cancelled ZSET | KEYS[5n+3] taken ZSET | KEYS[5n+4] follow HASH | KEYS[5n+5] shelf
--   HASH: five for each topic, all of one shard
-- Returns { jobs, tombstones }
-- Bound: the topics in KEYS; the caller sends at most 500.
local jobs, tombstones = 0, 0
for at = 1, #KEYS, 5 do
  jobs = jobs + redis.call('HLEN', KEYS[at]) + redis.call('HLEN', KEYS[at + 3])
    + tonumber(redis.call('HGET', KEYS[at + 4], 'jobs') or 0)
  tombstones = tombstones + redis.call('ZCARD', KEYS[at + 1]) + redis.call('ZCARD', KEYS[at + 2])
end
return { jobs, tombstones }
