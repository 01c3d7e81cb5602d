-- Which ids a partition holds: those of its jobs, and those that `unique_for` keeps taken. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua, of the partition
-- ARGV[1] partition | ARGV[2] how many partitions the topic has | ARGV[3..] ids
-- Returns { 1, for each id 1 if it is held, else 0 }; or { 0 } when the partition has settings for another number: puts
--   by that number may still come
-- Bound: the ids, at most 1000.
if (stored_settings().n or 1) ~= tonumber(ARGV[2]) then return { 0 } end
local reply, now = { 1 }, now_ms()
for at = 3, #ARGV do
  local taken_until = redis.call('ZSCORE', TAKEN, ARGV[at])
  local is_taken = taken_until and tonumber(taken_until) > now
  reply[at - 1] = (is_taken or redis.call('HEXISTS', POOL, ARGV[at]) == 1) and 1 or 0
end
return reply
