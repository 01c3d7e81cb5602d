-- Read one step through a key. Changes nothing.
-- KEYS[1] a HASH or ZSET
-- ARGV[1] its type | ARGV[2] where the last step ended, 0 to begin | ARGV[3] about how many elements to read
-- Returns { where this step ended, 0 when it was the last, { field, value, ... of a hash; member, score, ... of a
--   sorted set } }. Elements may come twice.
-- Bound: about ARGV[3] elements, or all when the store keeps them packed, as it does with a few short ones.
return redis.call(ARGV[1] == 'hash' and 'HSCAN' or 'ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
