-- Learn whether a batch was moved, after a call whose reply was lost or a process that ended. If it was not, its number
-- is taken, so that the call does nothing if it still comes.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] out or in | ARGV[3] number of the batch, the last one | ARGV[4] its token
-- Returns { 1, of a batch out the ids that stayed, separated by spaces }, or { 0 } when it was not moved. A second call
--   returns the same
-- Bound: one topic.
local way, number, key = ARGV[2], tonumber(ARGV[3]), topic_key('shelf')
if redis.call('HGET', key, way .. '_token') == ARGV[4] then
  return { 1, way == 'out' and redis.call('HGET', key, 'kept') or '' }
end
if SHELF.number(way) < number then redis.call('HSET', key, way, number) end
return { 0 }
