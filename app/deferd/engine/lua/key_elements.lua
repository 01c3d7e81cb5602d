-- Read one step through a key. Changes nothing.
-- KEYS[1] a HASH, ZSET or LIST
-- ARGV[1] its type | ARGV[2] where the last step ended, 0 to begin | ARGV[3] about how many elements to read
-- Returns { where this step ended, 0 when it was the last, { field, value, ... of a hash; member, score, ... of a
--   sorted set; entries of a list } }. Elements of a hash or a sorted set may come twice.
-- Bound: about ARGV[3] elements, or all when the store keeps them packed, as it does with a few short ones.
local kind, from, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
if kind == 'hash' then
  return redis.call('HSCAN', KEYS[1], from, 'COUNT', count)
elseif kind == 'zset' then
  return redis.call('ZSCAN', KEYS[1], from, 'COUNT', count)
end
local first = tonumber(from)
local entries = redis.call('LRANGE', KEYS[1], first, first + count - 1)
return { #entries < count and '0' or tostring(first + count), entries }
