-- Begin, or end, to delete a batch. Once it is begun, the batch takes no jobs, and puts none.
-- @flags allow-oom
-- KEYS: see lib/topic.lua, of any topic of the shard
-- ARGV[1] topic | ARGV[2] name | ARGV[3] 1 to delete it now, 0 to begin | ARGV[4] `created` of the batch that is meant
-- Returns 1; 0 when there is no such batch
-- Bound: one batch.
local name, key = ARGV[2], BATCHES.key(ARGV[2])
local created, completed = unpack(redis.call('HMGET', key, 'created', 'completed'))
if created ~= ARGV[4] or not BATCHES.is_there(created, completed, now_ms()) then return 0 end
if ARGV[3] == '0' then
  redis.call('HSET', key, 'sealed', 1, 'deleting', 1)
  return 1
end
redis.call('DEL', key)
redis.call('ZREM', of_shard('batches'), name)
redis.call('ZREM', of_shard('batches/completed'), name)
return 1
