-- Read the clock of a shard. Read-only.
-- @flags no-writes
-- KEYS[1] any key of the shard
-- Returns now in ms
-- Bound: one command.
return now_ms()
