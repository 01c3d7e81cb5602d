-- Count the jobs of many topics, in any state, and the tombstones of cancelled jobs. Read-only.
-- KEYS[2n+1] pool HASH | KEYS[2n+2] cancelled ZSET: two for each topic, all of one shard
-- Returns { jobs, tombstones }
-- Bound: the topics in KEYS; the caller sends at most 500.
local jobs, tombstones = 0, 0
for at = 1, #KEYS, 2 do
  jobs = jobs + redis.call('HLEN', KEYS[at])
  tombstones = tombstones + redis.call('ZCARD', KEYS[at + 1])
end
return { jobs, tombstones }
