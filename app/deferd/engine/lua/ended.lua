-- Find the jobs that have ended: those that are dead, finished or not there. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] ids
-- Returns their ids.
-- Bound: the ids, the caller sends at most 500. It reads no record, however long these are.
local ids = { unpack(ARGV, 2) }
local dead, finished = redis.call('ZMSCORE', DEAD, unpack(ids)), redis.call('ZMSCORE', FINISHED, unpack(ids))
local ended = {}
for index, id in ipairs(ids) do
  if dead[index] or finished[index] or redis.call('HEXISTS', POOL, id) == 0 then ended[#ended + 1] = id end
end
return ended
