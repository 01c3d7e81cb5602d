-- Codes for a consumer's call on a job that it claims to hold.
-- @include topic record transitions
local LIVE, NOT_FOUND, STALE, WAS_CANCELLED = 0, 1, 2, 3
-- STALE: the job is held under another receipt. A job that is not reserved has the code of its state.
local NOT_HELD = { delayed = 4, ready = 5, dead = 6, finished = 7 }

-- The code for a job in the pool when the receipt is not that of a live delivery.
local function code_for_stale(id)
  return NOT_HELD[(state_of(id))] or STALE
end

-- The code for a job that is not in the pool: cancelled for its last holder, else not found.
local function code_for_missing(id, nonce, attempt, now)
  local member = attempt == 0 and id or string.format('%s %.0f %d', id, nonce, attempt)
  local until_ms = redis.call('ZSCORE', CANCELLED, member)
  if until_ms and tonumber(until_ms) > now then return WAS_CANCELLED end
  return NOT_FOUND
end

-- Find the delivery of a call: returns a code, and when it is LIVE the job's raw record.
-- A delivery is live until the timer has made the job ready again: a finish just after the lease's end, before another
-- consumer could get the job, still succeeds.
local function find_delivery(id, nonce, attempt, now)
  local raw = redis.call('HGET', POOL, id)
  if not raw then return code_for_missing(id, nonce, attempt, now) end
  if #raw < HEADER_BYTES or not redis.call('ZSCORE', RESERVED, id) or not receipt_matches(raw, nonce, attempt) then
    return code_for_stale(id)
  end
  return LIVE, raw
end
