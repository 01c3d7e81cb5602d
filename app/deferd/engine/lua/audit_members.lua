-- Check one step through a sorted set or hash of a topic: each member must be a job in the pool. For the tombstones of
-- cancelled jobs it is the reverse: one for any delivery of an id may exist only while the job does not. An id that is
-- taken may have a finished job, but no other.
-- @include clock topic record transitions consistency
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] delayed, ready, reserved, dead, finished, expiry, holders, requests, taken, or cancelled
-- ARGV[4] cursor, 0 to begin | ARGV[5] about how many members to check
-- Returns { next cursor, 0 after the last step, members checked, { kind, id, detail, ... } for each finding }
-- Bound: about ARGV[5] members; the caller sends at most 1000. A small set that the store keeps packed is checked as a
-- whole.
local name = ARGV[3]
local is_hash = name == 'holders' or name == 'requests'
local key = STATE_SETS[name] or ({ expiry = EXPIRY, holders = HOLDERS, requests = REQUESTS, cancelled = CANCELLED,
  taken = TAKEN })[name]
local reply = redis.call(is_hash and 'HSCAN' or 'ZSCAN', key, ARGV[4], 'COUNT', ARGV[5])
local members = reply[2]
for at = 1, #members, 2 do
  local id = members[at]
  local has_record = redis.call('HEXISTS', POOL, id) == 1
  if name == 'taken' then
    if has_record and not redis.call('ZSCORE', FINISHED, id) then
      report('taken_wrong', id, 'until ' .. members[at + 1])
      if REPAIR then redis.call('ZREM', TAKEN, id) end
    end
  elseif name == 'cancelled' then
    if has_record then report('tombstone_wrong', id, 'until ' .. members[at + 1]) end
  elseif not has_record then
    report('no_record', id, name)
  end
  if REPAIR and name ~= 'taken' and has_record == (name == 'cancelled') then redis.call(is_hash and 'HDEL' or 'ZREM', key, id) end
end
return { reply[1], #members / 2, findings }
