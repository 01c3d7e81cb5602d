-- When held jobs were handed out, and how often their leases were extended.
-- @include topic record
-- For most deliveries nothing of this is stored: they were handed out when their lease, which lasts for the ttr of the job,
-- began. What that does not tell is in touches/ID, a HASH of the topic that expires at the end of the lease:
--   "nonce attempts"        how often this delivery was touched
--   "nonce attempts since"  ms at which it was handed out, once it was touched; from the pop on if its first lease had
--                           another length, because the pop named one, or a time limit or deadline cut it off
local HAND_OUT = {}

function HAND_OUT.key(id) return topic_key('touches/') .. id end

-- The field of the touches of the live delivery.
function HAND_OUT.field(raw) return string.format('%.0f %.0f', read_nonce_and_attempts(raw)) end

-- Note when the live delivery of a job was handed out, unless that is noted.
function HAND_OUT.note(id, raw, at)
  redis.call('HSETNX', HAND_OUT.key(id), HAND_OUT.field(raw) .. ' since', string.format('%.0f', at))
end

-- When its delivery was handed out if there is no note, by the end of its first lease; 0 when the record cannot be read.
function HAND_OUT.by_lease(raw, lease_end)
  local is_read, at = pcall(function() return lease_end - (read_extra(raw).t or DEFAULT_TTR_MS) end)
  return is_read and at or 0
end

-- Returns the ms at which a held job was handed out, 0 when that is not known, and how often it was touched.
function HAND_OUT.read(id, raw, lease_end)
  if #raw < HEADER_BYTES then return 0, 0 end  -- a damaged store
  local field = HAND_OUT.field(raw)
  local touches, since = unpack(redis.call('HMGET', HAND_OUT.key(id), field, field .. ' since'))
  touches = tonumber(touches or 0)
  if since then return tonumber(since), touches end
  if touches > 0 then return 0, touches end  -- by a version that did not note it
  return HAND_OUT.by_lease(raw, lease_end), 0
end
