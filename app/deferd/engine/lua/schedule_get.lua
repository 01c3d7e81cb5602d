-- Read one schedule. Read-only.
-- @include clock
-- KEYS[1] schedule/NAME HASH, see lib/schedules.lua
-- Returns { now ms, { field, value, ... } }, no fields when there is no such schedule
-- Bound: one schedule.
return { now_ms(), redis.call('HGETALL', KEYS[1]) }
