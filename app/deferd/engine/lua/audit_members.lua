-- Check one step through a set of a topic: each of its members is a job in the pool. Among the tombstones of cancelled
-- jobs it is the other way about: one that stands for any delivery of an id is there only while the job is not.
-- @include clock topic record transitions soundness
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/soundness.lua
-- ARGV[3] delayed, ready, reserved, dead, finished, expiry, holders, requests, or cancelled
-- ARGV[4] where the last step ended, 0 to begin | ARGV[5] about how many members to check
-- Returns { where this step ended, 0 when it was the last, members checked, { kind, id, detail of each damage ... } }
-- Bound: about ARGV[5] members; the caller sends at most 1000. A set that the store keeps in one piece, as it does with
-- small ones, is checked as a whole.
local name = ARGV[3]
local is_hash = name == 'holders' or name == 'requests'
local key = PLACES[name] or ({ expiry = EXPIRY, holders = HOLDERS, requests = REQUESTS, cancelled = CANCELLED })[name]
local reply = redis.call(is_hash and 'HSCAN' or 'ZSCAN', key, ARGV[4], 'COUNT', ARGV[5])
local members = reply[2]
for at = 1, #members, 2 do
  local id = members[at]
  local has_record = redis.call('HEXISTS', POOL, id) == 1
  if name == 'cancelled' then
    if has_record then report('tombstone_wrong', id, 'until ' .. members[at + 1]) end
  elseif not has_record then
    report('no_record', id, name)
  end
  if REPAIR and has_record == (name == 'cancelled') then redis.call(is_hash and 'HDEL' or 'ZREM', key, id) end
end
return { reply[1], #members / 2, findings }
