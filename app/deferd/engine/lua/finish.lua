-- Finish jobs of one topic. A job with a retain time is kept as finished with its result; others are deleted.
-- @include clock topic record transitions delivery
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] four for each job: id | nonce | attempt (0: any) | result JSON
-- Returns a code for each: 0 finished, now or before by the same delivery, 1 not found, 2 held under another receipt,
--   3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: the jobs in ARGV, at most 1000.
local now = now_ms()
local ids = {}
for at = 2, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
local raws = redis.call('HMGET', POOL, unpack(ids))
local lease_ends = redis.call('ZMSCORE', RESERVED, unpack(ids))

local released, gone, kept, done, earliest = {}, {}, {}, {}, math.huge

-- Finish a live delivery; its writes are collected and done at the end.
local function finish(id, raw, result)
  released[#released + 1] = id
  local retain = read_extra(raw).r or 0
  if retain == 0 then
    gone[#gone + 1] = id
    done[id] = 'gone'
    return
  end
  done[id] = 'kept'
  local record = read_record(raw)
  record.attempts = record.attempts + 1
  record.extra.f = now
  if result ~= '' then
    record.extra.n = #result
    record.rest = result .. record.rest
  end
  kept[#kept + 1] = { id, write_record(record), now + retain }
  earliest = math.min(earliest, now + retain)
end

-- A finish that is repeated because its response was lost succeeds.
local function was_finished_by(id, raw, nonce, attempt)
  local finished_nonce, attempts = read_nonce_and_attempts(raw)
  return finished_nonce == nonce and attempts == attempt and redis.call('ZSCORE', FINISHED, id)
end

local codes = {}
for index, id in ipairs(ids) do
  local at = 4 * index - 2
  local nonce, attempt = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local raw = raws[index]
  local code = LIVE
  if not raw then
    code = code_for_missing(id, nonce, attempt, now)
  elseif done[id] == 'gone' then
    code = code_for_missing(id, nonce, attempt, now)
  elseif done[id] == 'kept' then
    code = attempt ~= 0 and receipt_matches(raw, nonce, attempt) and LIVE or NOT_HELD.finished
  elseif not lease_ends[index] or not receipt_matches(raw, nonce, attempt) then
    code = was_finished_by(id, raw, nonce, attempt) and LIVE or code_for_stale(id)
  else
    finish(id, raw, ARGV[at + 3])
  end
  codes[index] = code
end

if #released > 0 then
  redis.call('ZREM', RESERVED, unpack(released))
  forget_holders(released)
  tally('finished', #released)
end
if #gone > 0 then redis.call('HDEL', POOL, unpack(gone)) end
for _, job in ipairs(kept) do
  redis.call('HSET', POOL, job[1], job[2])
  redis.call('ZADD', FINISHED, job[3], job[1])
end
if #kept > 0 then schedule(earliest) end
return codes
