-- Release jobs for another attempt after a wait; one becomes dead when it has no attempt left. Their receipts become
-- void.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] how long a dead job is kept, ms
-- ARGV[3..] two for each job: id | nonce u48 | attempt u32 (0: any) | wait ms i64, -1 for the job's backoff
--   | flags u8: + 1 an error text follows, + 2 the delivery counts as an attempt, else as a snooze, which needs a wait
--   | a random number from -1 to 1 for the jitter, double | due time of a placed retry, ms u64
--   | how much later that is than the end of the wait, ms u64 | length u32 of what comes next
--   | by which window and spread the caller placed the retry: "spread_ms window", nothing if it did not | error
-- Returns for each of the first jobs (lib/deliveries.lua): { 0, state, due ms (0 when dead), attempts, why it is dead }
--   or { 8, end of the wait ms, window, spread ms }: nothing is done, and the caller is to place the retry
--   or { code }: 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: the jobs in ARGV, at most 100, of which it reads 1 MiB.
local TO_PLACE = 8
local WAIT_AT = 11

-- What the functions below know of the call; all of it is set at its beginning.
local now, ids, consumers, most_events
local ended, has_ended, dead
local records, due_times, expiring, in_groups, events, earliest  -- of the jobs that wait for their next delivery

-- The wait in ms after `attempts` attempts, or nil when the schedule has ended.
local function backoff_ms(backoff, attempts, random)
  local seconds
  if not backoff or backoff.kind == 'exponential' then
    seconds = math.min(backoff and backoff.cap or 212, (backoff and backoff.base or 2) ^ attempts)
  elseif backoff.kind == 'fixed' then
    seconds = backoff.seconds
  else
    seconds = backoff.seconds[attempts]
    if not seconds then
      if backoff['then'] ~= 'repeat_last' then return nil end
      seconds = backoff.seconds[#backoff.seconds]
    end
  end
  local jitter = backoff and backoff.jitter or 0
  return math.floor(seconds * 1000 * (1 + jitter * random) + 0.5)
end

-- Have a job wait for its next delivery until `due`; its writes are collected and done at the end.
local function wait_until(due, id, record, counts, error)
  records[#records + 1] = id
  records[#records + 1] = write_record(record)
  due_times[#due_times + 1] = due
  due_times[#due_times + 1] = id
  earliest = math.min(earliest, due)
  if record.extra.i or record.extra.l then expiring[#expiring + 1] = { id, record } end
  if record.extra.gr then in_groups[#in_groups + 1] = { id, record.extra } end
  if not most_events then return end
  events[#events + 1] = counts and event_text('L', id, record.attempts, due, error)
    or event_text('S', id, record.attempts, due)
end

-- Release a live delivery; its writes are collected and done at the end. Returns the reply.
local function release(index, record)
  local id, argument, extra = ids[index], ARGV[2 * index + 2], record.extra
  local wait, flags, random, placed_due, moved, length, at = struct.unpack('<i8BdI8I8I4', argument, WAIT_AT)
  local placed_by, error = string.sub(argument, at, at + length - 1), string.sub(argument, at + length)
  local counts = flags >= 2
  if counts then
    record.attempts = record.attempts + 1
    log_attempt(record, now, 'released', consumers[index], error)
  else
    void_receipts(record)
    extra.s = (extra.s or 0) + 1
  end
  if flags % 2 == 1 then extra.e = error end

  local deadline, limit, died = deadline_of(record.due, extra), extra.m or 0
  if deadline and deadline <= now then
    died = 'deadline'
  elseif counts and limit > 0 and record.attempts >= limit then
    died = 'attempts_exhausted'
  elseif wait < 0 then
    wait = backoff_ms(extra.b, record.attempts, random)
    if not wait then died = 'schedule_ended' end
  end
  local window, spread = extra.wi, extra.sp or 0
  if window and not died and placed_by ~= string.format('%d %s', spread, window) then
    return { TO_PLACE, now + wait, window, spread }
  end

  ended[#ended + 1] = id
  has_ended[id] = true
  if died then
    dead[#dead + 1] = { id, record, died }
    return { LIVE, 'dead', 0, record.attempts, died }
  end
  local due = window and math.max(placed_due, now) or now + wait
  set_retry_due(record, due)
  if window and moved > 0 then extra.sh = moved end
  wait_until(due, id, record, counts, error)
  return { LIVE, 'delayed', due, record.attempts }
end

-- @call
now = now_ms()
local raws, codes
ids, raws, codes = read_deliveries(3, now)
consumers, most_events = redis.call('HMGET', HOLDERS, unpack(ids, 1, #codes)), events_to_keep()
ended, has_ended, dead = {}, {}, {}
records, due_times, expiring, in_groups, events, earliest = {}, {}, {}, {}, {}, math.huge

local replies = {}
for index, code in ipairs(codes) do
  if has_ended[ids[index]] then break end
  if code == LIVE then
    local is_read, record = pcall(read_record, raws[index])
    replies[index] = is_read and release(index, record) or { STALE }  -- a damaged store: the other jobs are released
  else
    replies[index] = { code }
  end
end

if #ended > 0 then
  forget_holders(ended)
  redis.call('ZREM', RESERVED, unpack(ended))
end
if #records > 0 then
  redis.call('HSET', POOL, unpack(records))
  for _, one in ipairs(expiring) do
    watch_expiry(one[1], one[2])
  end
  redis.call('ZADD', DELAY, unpack(due_times))
  schedule(earliest)
  local settings = #in_groups > 0 and stored_settings()
  for _, one in ipairs(in_groups) do FLOWS.keep_place(settings, one[1], one[2]) end
  if most_events then note_events(most_events, events) end
end
for _, one in ipairs(dead) do
  bury_job(one[1], one[2], one[3], now, tonumber(ARGV[2]))
end
return replies
