-- Read the latest records of the histories of some topics. Read-only.
-- @flags no-writes
-- KEYS[1..2] of a topic, KEYS[3..4] of the next: history/10s and history/5m, see publish_history.lua
-- ARGV[1] most records of 5 min of each topic
-- Returns { now ms, then for each topic two: its latest records of 5 min, the oldest first, and its last one of 10 s };
--   without those of a key that another program has damaged
-- Bound: the records; the caller sends at most 100 topics, and asks for 37 of each, of at most some 330 bytes.
local reply = { now_ms() }
for at = 1, #KEYS, 2 do
  for _, found in ipairs({
    redis.pcall('LRANGE', KEYS[at + 1], -ARGV[1], -1), redis.pcall('LRANGE', KEYS[at], -1, -1),
  }) do
    reply[#reply + 1] = found.err and {} or found
  end
end
return reply
