-- Begin a call on many jobs in one shard, or read what it has done there.
-- @flags allow-oom
-- KEYS[1] bulk/<request> HASH of the shard, see lib/selection.lua
-- KEYS[2] of_key/<key> of the key of the API that makes the call, if it has one (lib/of_key.lua)
-- ARGV[1] 1: remember the call, for an hour after its last step; 0: do not | ARGV[2] for how many ms instead, or ''
-- Returns { bound ms, done, delayed, ready, reserved, dead, finished }: only jobs put until `bound` belong to the call,
--   and what it has done so far. Both are those of its first attempt if that is remembered.
-- Bound: one key, and as many entries of KEYS[2] as have ended.
local REMEMBERED_MS = 3600000
local kept_ms = tonumber(ARGV[2]) or REMEMBERED_MS
local found = redis.call('HMGET', KEYS[1], 'bound', 'done', 'delayed', 'ready', 'reserved', 'dead', 'finished')
local now = now_ms()
if not found[1] and ARGV[1] == '1' then
  redis.call('HSET', KEYS[1], 'bound', string.format('%.0f', now))
  redis.call('PEXPIRE', KEYS[1], kept_ms)
  if KEYS[2] then note_of_key(KEYS[2], string.match(KEYS[1], '}:(.*)$'), now, kept_ms) end
end
local reply = { tonumber(found[1] or now) }
for index = 2, #found do
  reply[index] = tonumber(found[index] or 0)
end
return reply
