-- Read one schedule. Read-only.
-- @include clock
-- KEYS[1] schedule/NAME HASH, see lib/schedules.lua
-- Returns { now ms, { field, value, ... }, when its next run is due, ms, 0 when that does not wait any more }, no fields
--   when there is no such schedule
-- Bound: one schedule.
local topic, next_id = unpack(redis.call('HMGET', KEYS[1], 'topic', 'next_id'))
local due
if topic and next_id and next_id ~= '' then
  local of_topic = string.match(KEYS[1], '^[^}]*}:') .. topic
  due = redis.call('HEXISTS', of_topic .. ':runs', next_id) == 1 and redis.call('ZSCORE', of_topic .. ':delay', next_id)
end
return { now_ms(), redis.call('HGETALL', KEYS[1]), due and tonumber(due) or 0 }
