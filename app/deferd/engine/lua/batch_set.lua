-- Create, change or seal a batch.
-- KEYS: see lib/topic.lua, of the topic of its `on_end`
-- ARGV[1] topic | ARGV[2] name | ARGV[3] `on_end` as JSON, '' to leave it | ARGV[4] expect, 0 to leave it | ARGV[5] 1: seal it
-- ARGV[6] the most batches of the shard that are not completed | ARGV[7] the topic of the `on_end` that it had when the
--   caller found it, '' when there was none: whether the caller may change it depends on that
-- Returns { code, field, value, ... } with the fields of lib/batches.lua: 0 it existed, 1 created; or { code } when nothing
--   was done: 2 there is none, and no `on_end`, 3 there are as many as there may be, 4 the topic has several partitions,
--   5 it is not as the caller found it
-- Bound: one batch, and a few completed ones that are forgotten.
local EXISTED, CREATED, NOT_FOUND, TOO_MANY, PARTITIONED, CHANGED = 0, 1, 2, 3, 4, 5
local name, on_end, expect, seals = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local key, now, code = BATCHES.key(name), now_ms(), EXISTED
if on_end ~= '' and stored_settings().n then return { PARTITIONED } end
BATCHES.forget_some(now)
local created, completed, joined, old = unpack(redis.call('HMGET', key, 'created', 'completed', 'joined', 'on_end'))
local is_there = BATCHES.is_there(created, completed, now)
if is_there and cjson.decode(old).topic ~= ARGV[7] then
  redis.call('ZADD', of_shard('batches'), 0, name)  -- where the caller looks for it once more, also in a damaged store
  return { CHANGED }
end
if not is_there then
  if on_end == '' then return { NOT_FOUND } end
  local names, over = of_shard('batches'), of_shard('batches/completed')
  if redis.call('ZCARD', names) - redis.call('ZCARD', over) >= tonumber(ARGV[6]) then return { TOO_MANY } end
  redis.call('DEL', key)
  redis.call('ZREM', over, name)
  redis.call('ZADD', names, 0, name)
  redis.call('HSET', key, 'created', string.format('%.0f', now))
  code, completed, joined = CREATED, false, false
end
if not completed then
  if on_end ~= '' then redis.call('HSET', key, 'on_end', on_end) end
  if expect > 0 then redis.call('HSET', key, 'expect', expect) end
  if seals or expect > 0 and tonumber(joined or 0) >= expect then
    redis.call('HSET', key, 'sealed', 1)
    BATCHES.settle(name)
  end
end
return { code, unpack(redis.call('HGETALL', key)) }
