-- Count the jobs of many topics together, changing nothing.
-- KEYS[5n+1] pool HASH | KEYS[5n+2] delay ZSET | KEYS[5n+3] reserved ZSET | KEYS[5n+4] dead ZSET
-- KEYS[5n+5] finished ZSET: five for each topic, all of one shard
-- Returns { delayed, ready, reserved, dead, finished }
-- Bound: the topics given; the caller sends at most 500.
local pooled, delayed, reserved, dead, finished = 0, 0, 0, 0, 0
for at = 1, #KEYS, 5 do
  pooled = pooled + redis.call('HLEN', KEYS[at])
  delayed = delayed + redis.call('ZCARD', KEYS[at + 1])
  reserved = reserved + redis.call('ZCARD', KEYS[at + 2])
  dead = dead + redis.call('ZCARD', KEYS[at + 3])
  finished = finished + redis.call('ZCARD', KEYS[at + 4])
end
return { delayed, pooled - delayed - reserved - dead - finished, reserved, dead, finished }
