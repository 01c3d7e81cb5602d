-- Count the members of several sorted sets. Read-only.
-- @flags no-writes
-- KEYS[1..] ZSET, all of one shard
-- Returns the number of members of each, -1 for a key of another type, which another program has damaged
-- Bound: the keys; the caller sends at most 500.
local counts = {}
for at, key in ipairs(KEYS) do
  local members = redis.pcall('ZCARD', key)
  counts[at] = type(members) == 'number' and members or -1
end
return counts
