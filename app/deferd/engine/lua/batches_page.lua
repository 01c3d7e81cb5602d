-- Read one page of a shard's batches, in the order of their names. Read-only.
-- @flags no-writes
-- KEYS[1] batches ZSET, see lib/batches.lua
-- ARGV[1] first name, as for ZRANGE BYLEX | ARGV[2] most batches
-- Returns for each { name, field, value, ... }, without fields for one that is not kept any more
-- Bound: ARGV[2] batches; the caller sends at most 1000.
local prefix, now, reply = string.sub(KEYS[1], 1, -3) .. '/', now_ms(), {}
for index, name in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])) do
  local created, completed = unpack(redis.call('HMGET', prefix .. name, 'created', 'completed'))
  local fields = BATCHES.is_there(created, completed, now) and redis.call('HGETALL', prefix .. name) or {}
  reply[index] = { name, unpack(fields) }
end
return reply
