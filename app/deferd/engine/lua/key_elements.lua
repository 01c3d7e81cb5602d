-- Read one step through a key. Read-only.
-- KEYS[1] a HASH or ZSET
-- ARGV[1] its type | ARGV[2] cursor, 0 to begin | ARGV[3] about how many elements to read
-- Returns { next cursor, 0 after the last step, { field, value, ... of a hash; member, score, ... of a sorted set } }
--   An element may be returned twice.
-- Bound: about ARGV[3] elements, or all of a small key that the store keeps packed.
return redis.call(ARGV[1] == 'hash' and 'HSCAN' or 'ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
