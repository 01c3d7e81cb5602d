-- Read the clock by which calls are given up: as lib/calls.lua does, also where tests move the clock of jobs. Read-only.
-- @flags no-writes
-- KEYS[1] any key of the shard
-- Returns now in ms
-- Bound: one command.
return called_at_ms
