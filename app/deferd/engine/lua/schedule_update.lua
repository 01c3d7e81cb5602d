-- Change, advance or delete a schedule without a run and without another job: as schedule_apply.lua, also in a store that
-- is out of memory.
-- @flags allow-oom
-- KEYS, ARGV: as in schedule_apply.lua
-- Returns what schedule_apply.lua returns
-- Bound: as in schedule_apply.lua
return scripts.schedule_apply(KEYS, ARGV)
