-- Read one step through a key. Read-only.
-- @flags no-writes
-- KEYS[1] a HASH, ZSET or LIST
-- ARGV[1] its type | ARGV[2] cursor, 0 to begin | ARGV[3] about how many elements to read
-- Returns { next cursor, 0 after the last step, { field, value, ... of a hash; member, score, ... of a sorted set; the
--   elements of a list } }
--   An element may be returned twice.
-- A list's cursor is the index of the next element.
-- Bound: about ARGV[3] elements, or all of a small key that the store keeps packed.
if ARGV[1] == 'list' then
  local first, count = tonumber(ARGV[2]), tonumber(ARGV[3])
  local next_index = first + count < redis.call('LLEN', KEYS[1]) and first + count or 0
  return { tostring(next_index), redis.call('LRANGE', KEYS[1], first, first + count - 1) }
end
return redis.call(ARGV[1] == 'hash' and 'HSCAN' or 'ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
