-- Read one step through the keys of a shard: name, type, size and time to live of each. Read-only.
-- @flags no-writes
-- KEYS[1] any key of the shard: its name up to the closing brace is the prefix of all keys of the shard
-- ARGV[1] cursor, 0 to begin | ARGV[2] about how many keys of the store to read
-- Returns { next cursor, 0 after the last step, then four for each key: name, type, number of fields, members or
-- elements (0 for
--   other types; without the member of `due` that stands for the schedules), time to live in ms or -1 }. A key may be returned twice.
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
    if string.find(key, '}:due$') and redis.call('ZSCORE', key, ':schedules') then size = size - 1 end
  elseif kind == 'list' then
    size = redis.call('LLEN', key)
  end
  reply[#reply + 1] = key
  reply[#reply + 1] = kind
  reply[#reply + 1] = size
  reply[#reply + 1] = redis.call('PTTL', key)
end
return reply
