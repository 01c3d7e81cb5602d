-- Sum up the jobs of many topics by state. Read-only.
-- KEYS[5n+1] delay | KEYS[5n+2] ready | KEYS[5n+3] reserved | KEYS[5n+4] dead | KEYS[5n+5] finished: five ZSETs for
--   each topic, all of one shard
-- Returns { delayed, ready, reserved, dead, finished }
-- Bound: the topics in KEYS; the caller sends at most 500.
local counts = { 0, 0, 0, 0, 0 }
for at, key in ipairs(KEYS) do
  local state = (at - 1) % 5 + 1
  counts[state] = counts[state] + redis.call('ZCARD', key)
end
return counts
