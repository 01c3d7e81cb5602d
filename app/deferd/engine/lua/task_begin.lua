-- Store a task that begins now, and forget old ones.
-- @flags allow-oom
-- KEYS[1] tasks ZSET id -> when it began, ms | KEYS[2] tasks/running ZSET id -> end of its lease, ms
-- KEYS[3] task/<id> HASH, see engine/tasks.py; until it ends it is kept
-- KEYS[4] of_key/<key> of the key of the API that begins it, if it has one (lib/of_key.lua)
-- ARGV[1] id | ARGV[2] lease, ms | ARGV[3] most tasks that run | ARGV[4] most tasks to keep
-- ARGV[5] how long after its end a task with this id gives way to a new one, ms
-- ARGV[6] the key of the API that begins it, '' without keys | ARGV[7] most tasks of one key that run
-- ARGV[8] how long it is noted in KEYS[4], ms | ARGV[9..] fields, values
-- Returns 1; 0 when there is a task with this id, which stays; -1 when too many run, -2 when too many of the key
-- Bound: one task, ARGV[3] that run, and MOST_FORGOTTEN.
local TASKS, RUNNING, TASK = KEYS[1], KEYS[2], KEYS[3]
local MOST_FORGOTTEN = 100
local PREFIX = string.match(TASKS, '^[^}]*}:') .. 'task/'
local now = now_ms()
local ended = tonumber(redis.call('HGET', TASK, 'ended') or '')
if redis.call('EXISTS', TASK) == 1 and not (ended and ended <= now - ARGV[5]) then return 0 end
delete_if_damaged(TASKS)
delete_if_damaged(RUNNING)
if redis.call('ZCARD', RUNNING) >= tonumber(ARGV[3]) then return -1 end
if ARGV[6] ~= '' then
  local of_key = 0
  for _, id in ipairs(redis.call('ZRANGE', RUNNING, 0, -1)) do
    if redis.call('HGET', PREFIX .. id, 'key') == ARGV[6] then of_key = of_key + 1 end
  end
  if of_key >= tonumber(ARGV[7]) then return -2 end
end
if ended then redis.call('DEL', TASK) end
local beyond = redis.call('ZCARD', TASKS) + 1 - ARGV[4]
for _, id in ipairs(redis.call('ZRANGE', TASKS, 0, MOST_FORGOTTEN - 1)) do
  local is_gone = redis.call('EXISTS', PREFIX .. id) == 0
  if is_gone or beyond > 0 and not redis.call('ZSCORE', RUNNING, id) then
    redis.call('ZREM', TASKS, id)
    redis.call('DEL', PREFIX .. id)
    beyond = beyond - 1
  end
end
redis.call('HSET', TASK, 'started', string.format('%.0f', now), 'state', 'running', 'key', ARGV[6], unpack(ARGV, 9))
redis.call('ZADD', TASKS, now, ARGV[1])
if KEYS[4] then note_of_key(KEYS[4], 'task/' .. ARGV[1], now, ARGV[8]) end
redis.call('ZADD', RUNNING, now + ARGV[2], ARGV[1])
return 1
