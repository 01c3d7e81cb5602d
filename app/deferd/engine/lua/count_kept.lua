-- Count the jobs of many topics, in any state, with their follow-ups, and the tombstones of cancelled and of unique
-- jobs. Read-only.
-- @flags no-writes
-- KEYS[4n+1] pool HASH | KEYS[4n+2] cancelled ZSET | KEYS[4n+3] taken ZSET | KEYS[4n+4] follow HASH: four for each
--   topic, all of one shard
-- Returns { jobs, tombstones }
-- Bound: the topics in KEYS; the caller sends at most 500.
local jobs, tombstones = 0, 0
for at = 1, #KEYS, 4 do
  jobs = jobs + redis.call('HLEN', KEYS[at]) + redis.call('HLEN', KEYS[at + 3])
  tombstones = tombstones + redis.call('ZCARD', KEYS[at + 1]) + redis.call('ZCARD', KEYS[at + 2])
end
return { jobs, tombstones }
