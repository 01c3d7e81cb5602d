-- Ask for the end of a task.
-- @flags allow-oom
-- KEYS[1] task/<id> HASH
-- Returns its state, '' when there is no such task
-- Bound: one task.
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'running' then
  redis.call('HSET', KEYS[1], 'stop', '1')
end
return state or ''
