-- When held jobs were handed out, and how often their leases were extended.
-- @include topic record
-- For most deliveries nothing of this is stored: they were handed out when their lease, which lasts for the ttr of the job,
-- began. REQUESTS has it, behind the id of the request, for those that were touched, and for those whose first lease had
-- another length, because the pop named one, or a time limit or deadline cut it off.
local HAND_OUT = {}

-- The key of the touches of a job: a HASH "nonce attempts" -> how often that delivery was touched, until its lease ends.
function HAND_OUT.touches_key(id) return topic_key('touches/') .. id end

function HAND_OUT.touches_field(raw) return string.format('%.0f %.0f', read_nonce_and_attempts(raw)) end

-- What REQUESTS has for a delivery that was handed out at `at` ms; `request_id` nil or false for none, `mark` what
-- lib/flows.lua needs when it ends, nil for nothing.
function HAND_OUT.entry(request_id, at, mark)
  return string.format('%s %.0f', request_id or '', at) .. (mark and ' ' .. mark or '')
end

-- When the live delivery of a job was handed out, ms; 0 when its record cannot be read. `entry` is what REQUESTS has for
-- it, false for nothing.
function HAND_OUT.since(entry, raw, lease_end)
  local at = entry and string.match(entry, ' (%d+)')
  if at then return tonumber(at) end
  if string.sub(raw, 23, 26) == NO_EXTRA then return lease_end - DEFAULT_TTR_MS end  -- as most jobs
  local is_read, extra = pcall(read_extra, raw)
  return is_read and type(extra) == 'table' and lease_end - (extra.t or DEFAULT_TTR_MS) or 0
end

-- Note when deliveries were handed out that are touched for the first time. Bound: the ids, at most 100.
function HAND_OUT.note(ids, raws, lease_ends)
  local notes = {}
  for index, entry in ipairs(redis.call('HMGET', REQUESTS, unpack(ids))) do
    if not (entry and string.find(entry, ' ', 1, true)) then
      notes[#notes + 1] = ids[index]
      notes[#notes + 1] = HAND_OUT.entry(entry, HAND_OUT.since(entry, raws[index], lease_ends[index]))
    end
  end
  if #notes > 0 then redis.call('HSET', REQUESTS, unpack(notes)) end
end

-- The same of a held job, 0 also when it is not known, because a version touched it that does not note this.
function HAND_OUT.read(id, raw, lease_end)
  if #raw < HEADER_BYTES then return 0 end  -- a damaged store
  local entry = redis.call('HGET', REQUESTS, id)
  local is_noted = entry and string.find(entry, ' ', 1, true)
  if not is_noted and redis.call('HEXISTS', HAND_OUT.touches_key(id), HAND_OUT.touches_field(raw)) == 1 then return 0 end
  return HAND_OUT.since(entry, raw, lease_end)
end
