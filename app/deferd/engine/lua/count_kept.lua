-- Count the jobs of many topics, in any state, and the tombstones of cancelled and of unique jobs. Read-only.
-- KEYS[3n+1] pool HASH | KEYS[3n+2] cancelled ZSET | KEYS[3n+3] taken ZSET: three for each topic, all of one shard
-- Returns { jobs, tombstones }
-- Bound: the topics in KEYS; the caller sends at most 500.
local jobs, tombstones = 0, 0
for at = 1, #KEYS, 3 do
  jobs = jobs + redis.call('HLEN', KEYS[at])
  tombstones = tombstones + redis.call('ZCARD', KEYS[at + 1]) + redis.call('ZCARD', KEYS[at + 2])
end
return { jobs, tombstones }
