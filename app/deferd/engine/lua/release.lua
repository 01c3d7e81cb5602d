-- Release a job for another attempt after a wait; it becomes dead when it has no attempt left. The receipt becomes
-- void.
-- @include clock topic events tags record transitions delivery time_limits waiting attempts_log
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] nonce | ARGV[4] attempt (0: any)
-- ARGV[5] wait ms, -1 for the job's backoff | ARGV[6] 1 when an error text follows | ARGV[7] error
-- ARGV[8] a random number from -1 to 1 for the jitter | ARGV[9] how long a dead job is kept, ms
-- ARGV[10] 1: the delivery counts as an attempt; 0: as a snooze, which needs a wait
-- ARGV[11] by which window and spread the caller placed the retry: "spread_ms window", '' if it did not
-- ARGV[12] the due time of a placed retry, ms | ARGV[13] how much later that is than the end of the wait, ms
-- Returns { 0, state, due ms (0 when dead), attempts, why it is dead }
--   or { 8, end of the wait ms, window, spread ms }: nothing is done, and the caller is to place the retry
--   or { code }: 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: one job.
local id, now = ARGV[2], now_ms()
local code, raw = find_delivery(id, tonumber(ARGV[3]), tonumber(ARGV[4]), now)
if code ~= LIVE then return { code } end

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

local record = read_record(raw)
local counts = ARGV[10] == '1'
if counts then
  record.attempts = record.attempts + 1
  log_attempt(record, now, 'released', redis.call('HGET', HOLDERS, id), ARGV[7])
else
  void_receipts(record)
  record.extra.s = (record.extra.s or 0) + 1
end
if ARGV[6] == '1' then record.extra.e = ARGV[7] end

local deadline, limit, wait = deadline_of(record.due, record.extra), record.extra.m or 0, tonumber(ARGV[5])
local died
if deadline and deadline <= now then
  died = 'deadline'
elseif counts and limit > 0 and record.attempts >= limit then
  died = 'attempts_exhausted'
elseif wait < 0 then
  wait = backoff_ms(record.extra.b, record.attempts, tonumber(ARGV[8]))
  if not wait then died = 'schedule_ended' end
end
local window, spread = record.extra.wi, record.extra.sp or 0
if window and not died and ARGV[11] ~= string.format('%d %s', spread, window) then
  return { 8, now + wait, window, spread }
end

redis.call('ZREM', RESERVED, id)
forget_holders({ id })
if died then
  bury_job(id, record, died, now, tonumber(ARGV[9]))
  return { 0, 'dead', 0, record.attempts, record.extra.d }
end
local due, moved = now + wait, 0
if window then due, moved = math.max(tonumber(ARGV[12]), now), tonumber(ARGV[13]) end
set_retry_due(record, due)
if moved > 0 then record.extra.sh = moved end
redis.call('HSET', POOL, id, write_record(record))
if record.extra.i or record.extra.l then watch_expiry(id, record) end
redis.call('ZADD', DELAY, record.due, id)
schedule(record.due)
if counts then
  note_event('L', id, record.attempts, record.due, ARGV[7])
else
  note_event('S', id, record.attempts, record.due)
end
return { 0, 'delayed', record.due, record.attempts }
