-- Run one command that removes something under one key, or lets it expire: as write.lua, also in a store that is out of
-- memory.
-- @flags allow-oom
-- KEYS, ARGV: as in write.lua
-- Returns its reply
-- Bound: as in write.lua
return scripts.write(KEYS, ARGV)
