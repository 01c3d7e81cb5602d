-- Look in one step through the keys of a shard: what each is, and how much it holds. Changes nothing.
-- KEYS[1] any key of the shard: what stands before and in the braces of its name is common to all keys of the shard
-- ARGV[1] where the last step ended, 0 to begin | ARGV[2] about how many keys of the store to look at
-- Returns { where this step ended, 0 when it was the last, then four of each key: its name, its type, the fields or
--   members that it holds (0 for other types), ms for which it is kept or -1 }. A key may come twice.
-- Bound: about ARGV[2] keys; the caller sends at most 1000.
local pattern = string.match(KEYS[1], '^[^}]*}:') .. '*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', ARGV[2])
local reply = { found[1] }
for _, key in ipairs(found[2]) do
  local kind, size = redis.call('TYPE', key).ok, 0
  if kind == 'hash' then
    size = redis.call('HLEN', key)
  elseif kind == 'zset' then
    size = redis.call('ZCARD', key)
  end
  reply[#reply + 1] = key
  reply[#reply + 1] = kind
  reply[#reply + 1] = size
  reply[#reply + 1] = redis.call('PTTL', key)
end
return reply
