-- The answer to a consumer about a job that it says it holds.
local LIVE, NOT_FOUND, STALE, CANCELLED_ANSWER = 0, 1, 2, 3
-- STALE stands for a job that is held under another receipt. A job that nobody holds has the code of its state.
local NOT_HELD = { delayed = 4, ready = 5, dead = 6, finished = 7 }

-- The code for a job in the pool whose live delivery is not the one that was meant.
local function code_of_stale(id)
  return NOT_HELD[(state_of(id))] or STALE
end

-- Whether the holder of a job that is not in the pool should hear that the job was cancelled.
local function answer_for_missing(id, nonce, attempt, now)
  local member = attempt == 0 and id or string.format('%s %.0f %d', id, nonce, attempt)
  local until_ms = redis.call('ZSCORE', CANCELLED, member)
  if until_ms and tonumber(until_ms) > now then return CANCELLED_ANSWER end
  return NOT_FOUND
end

-- The delivery that a call means: an answer, and when it is LIVE the job's raw record.
-- A delivery lives until the timer takes the job back: a finish that comes just after the lease's end, and before
-- anybody else could get the job, is still good.
local function find_delivery(id, nonce, attempt, now)
  local raw = redis.call('HGET', POOL, id)
  if not raw then return answer_for_missing(id, nonce, attempt, now) end
  if not redis.call('ZSCORE', RESERVED, id) or not receipt_matches(raw, nonce, attempt) then
    return code_of_stale(id)
  end
  return LIVE, raw
end
