-- Run one command that changes one key. Sent by itself, it would have its effect also when it comes late.
-- KEYS[1] the key
-- ARGV[1] the command's name | ARGV[2..] its arguments behind the key
-- Returns its reply
-- Bound: one command, with at most some thousand arguments.
local name = table.remove(ARGV, 1)
return redis.call(name, KEYS[1], unpack(ARGV))
