-- Count the members of several sorted sets. Read-only.
-- @flags no-writes
-- KEYS[1..] ZSET, all of one shard
-- Returns the number of members of each, for delayed jobs with those on the shelf; -1 for a key of another type, which
--   another program has damaged
-- Bound: the keys; the caller sends at most 500.
local counts = {}
for at, key in ipairs(KEYS) do
  local members = redis.pcall('ZCARD', key)
  counts[at] = type(members) == 'number' and members or -1
  if string.sub(key, -6) == ':delay' then
    local shelved = redis.pcall('HGET', string.sub(key, 1, -6) .. 'shelf', 'jobs')
    if type(shelved) == 'string' and counts[at] >= 0 then counts[at] = counts[at] + tonumber(shelved) end
  end
end
return counts
