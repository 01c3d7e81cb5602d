-- Begin a call on many jobs in one shard, or read what it has done there.
-- @include clock
-- KEYS[1] bulk/<request> HASH of the shard, see lib/selection.lua
-- ARGV[1] 1: remember the call, for an hour after its last step; 0: do not | ARGV[2] for how many ms instead, if given
-- Returns { bound ms, done, delayed, ready, reserved, dead, finished }: only jobs put until `bound` belong to the call,
-- and
--   what it has done so far. Both are those of its first attempt if that is remembered.
-- Bound: one key.
local REMEMBERED_MS = 3600000
local found = redis.call('HMGET', KEYS[1], 'bound', 'done', 'delayed', 'ready', 'reserved', 'dead', 'finished')
local now = now_ms()
if not found[1] and ARGV[1] == '1' then
  -- A store that is out of memory does not remember the call, but lets it cancel jobs.
  local reply = redis.pcall('HSET', KEYS[1], 'bound', string.format('%.0f', now))
  if type(reply) ~= 'table' then
    redis.call('PEXPIRE', KEYS[1], ARGV[2] or REMEMBERED_MS)
  elseif not string.find(reply.err, 'OOM', 1, true) then
    return reply
  end
end
local reply = { tonumber(found[1] or now) }
for index = 2, #found do
  reply[index] = tonumber(found[index] or 0)
end
return reply
