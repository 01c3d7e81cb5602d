-- Extend leases to a ttr from now, but not beyond the job's time limit and deadline. Counts the touches, and notes with
-- the first one when the job was handed out. A touch with a progress stores it with the job, notes it as an event, and
-- tells those who wait for the job.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] two for each job: id | nonce u48 | attempt u32 (0: any) | ttr ms u64, 0 for the job's own |
--   JSON of the progress, which may be missing
-- Returns for each of the first jobs (lib/deliveries.lua) the end of its lease in ms
--   or a code: 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: the jobs in ARGV, at most 100, of which it reads 1 MiB.
local TTR_AT, PROGRESS_AT = 11, 19
local LONGEST_IN_EVENT = 120

-- What the functions below know of the call; all of it is set at its beginning.
local now, ids, replies, ends_before
local latest_ends  -- of the leases of all jobs; few have a time limit or deadline
local leases, touches, earliest

-- The end of the lease; nil when the record cannot be read.
local function lease_end_of(index, raw)
  local ttr = struct.unpack('<I8', ARGV[2 * index + 1], TTR_AT)
  if ttr == 0 then
    local is_read, extra = pcall(read_extra, raw)
    if not is_read then return nil end
    ttr = extra.t or DEFAULT_TTR_MS
  end
  if string.sub(raw, 23, 26) == NO_EXTRA then return now + ttr end
  latest_ends = latest_ends or redis.call('ZMSCORE', EXPIRY, unpack(ids, 1, #replies))
  return math.min(now + ttr, tonumber(latest_ends[index] or math.huge))
end

-- Store the progress of a job in its record, which an earlier touch of this call may have changed.
local function store_progress(id, text)
  local is_read, record = pcall(read_record, redis.call('HGET', POOL, id))
  if not is_read then return end  -- a damaged store
  record.extra.pg, record.extra.pa = text, now
  redis.call('HSET', POOL, id, write_record(record))
  note_event('G', id, record.attempts + 1, #text <= LONGEST_IN_EVENT and text or '')
  ENDS.tell(id, record, 'progress')
end

-- Extend the lease of a live delivery, but for what is done at the end for all of them. Returns the reply.
local function touch(index, raw)
  local lease_end = lease_end_of(index, raw)
  if not lease_end then return STALE end  -- a damaged store: the other jobs are touched all the same
  local id = ids[index]
  leases[#leases + 1] = lease_end
  leases[#leases + 1] = id
  touches[#touches + 1] = { id, raw, tonumber(ends_before[index]), lease_end }
  earliest = math.min(earliest, lease_end)
  local progress = string.sub(ARGV[2 * index + 1], PROGRESS_AT)
  if progress ~= '' then store_progress(id, progress) end
  return lease_end
end

-- @call
local raws
now, latest_ends = now_ms(), nil
ids, raws, replies, ends_before = read_deliveries(2, now)
leases, touches, earliest = {}, {}, math.huge
for index, code in ipairs(replies) do
  if code == LIVE then replies[index] = touch(index, raws[index]) end
end
if #leases > 0 then
  redis.call('ZADD', RESERVED, unpack(leases))
  schedule(earliest)
end
local first_ids, first_raws, first_ends = {}, {}, {}
for _, one in ipairs(touches) do
  local id, raw, end_before, lease_end = unpack(one)
  local key = HAND_OUT.touches_key(id)
  if redis.call('HINCRBY', key, HAND_OUT.touches_field(raw), 1) == 1 then
    local at = #first_ids + 1
    first_ids[at], first_raws[at], first_ends[at] = id, raw, end_before
  end
  redis.call('PEXPIRE', key, math.max(lease_end - now, 1))
end
if #first_ids > 0 then HAND_OUT.note(first_ids, first_raws, first_ends) end
return replies
