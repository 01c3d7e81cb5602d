-- Note how far a task is, and extend the lease of the process that runs it; or end it.
-- @flags allow-oom
-- KEYS[1] tasks/running ZSET id -> end of its lease, ms | KEYS[2] task/<id> HASH
-- ARGV[1] id | ARGV[2] process | ARGV[3] lease, ms; 0 to give the task up | ARGV[4] running, or the state in which it ends
-- ARGV[5] for how long it is kept then, ms | ARGV[6..] fields, values
-- Returns 1; 2 when it is to stop; 0 when another process runs it or it has ended, and nothing was changed
-- Bound: one task.
local RUNNING, TASK = KEYS[1], KEYS[2]
local found = redis.call('HMGET', TASK, 'owner', 'state', 'stop')
if found[1] ~= ARGV[2] or found[2] ~= 'running' then return 0 end
local now = now_ms()
delete_if_damaged(RUNNING)
if #ARGV > 5 then redis.call('HSET', TASK, unpack(ARGV, 6)) end
if ARGV[4] == 'running' then
  redis.call('ZADD', RUNNING, now + ARGV[3], ARGV[1])
else
  redis.call('HSET', TASK, 'state', ARGV[4], 'ended', string.format('%.0f', now))
  redis.call('PEXPIRE', TASK, ARGV[5])
  redis.call('ZREM', RUNNING, ARGV[1])
end
return found[3] and 2 or 1
