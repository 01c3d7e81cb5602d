-- Run one command that changes one key.
-- KEYS[1] the key
-- ARGV[1] its name | ARGV[2..] its arguments behind the key
-- Returns its reply
-- Bound: one command.
local name = table.remove(ARGV, 1)
return redis.call(name, KEYS[1], unpack(ARGV))
