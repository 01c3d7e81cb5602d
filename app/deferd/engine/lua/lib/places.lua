-- Where a job is, is its state: in one of the sorted sets, or, when in none of them, ready.

-- The state of a job that is in the pool, and its score there (nil when ready).
local function state_of(id)
  local score = redis.call('ZSCORE', DELAY, id)
  if score then return 'delayed', tonumber(score) end
  score = redis.call('ZSCORE', RESERVED, id)
  if score then return 'reserved', tonumber(score) end
  score = redis.call('ZSCORE', DEAD, id)
  if score then return 'dead', tonumber(score) end
  score = redis.call('ZSCORE', FINISHED, id)
  if score then return 'finished', tonumber(score) end
  return 'ready', nil
end

local PLACES = { delayed = DELAY, reserved = RESERVED, dead = DEAD, finished = FINISHED }

local function is_ready(id)
  return redis.call('HEXISTS', POOL, id) == 1 and state_of(id) == 'ready'
end

-- Jobs in the sorted sets are counted exactly; the rest of the pool is ready.
local function count_ready()
  return redis.call('HLEN', POOL) - redis.call('ZCARD', DELAY) - redis.call('ZCARD', RESERVED)
    - redis.call('ZCARD', DEAD) - redis.call('ZCARD', FINISHED)
end

-- How far from either end of the Ready list an id is looked for when its job leaves by another way than a pop.
local NEAR = 1000

-- Take an id out of the Ready list, of a job that is no longer ready. One that is deeper inside than NEAR is left
-- over: pop passes it by.
local function leave_line(id)
  if count_ready() == 0 then
    redis.call('UNLINK', READY)
  elseif redis.call('LPOS', READY, id, 'MAXLEN', NEAR) then
    redis.call('LREM', READY, 1, id)
  elseif redis.call('LPOS', READY, id, 'RANK', -1, 'MAXLEN', NEAR) then
    redis.call('LREM', READY, -1, id)
  end
end

-- Until 60 s after its lease would have ended, the holder of a cancelled job is told so.
local TOMBSTONE_MS = 60000

-- Take a job out of the store for good. The holder of a reserved one will be answered "cancelled".
local function remove_job(id, state, score, now)
  if state == 'reserved' then
    local nonce, attempts = read_nonce_and_attempts(redis.call('HGET', POOL, id))
    local until_ms = math.max(score, now) + TOMBSTONE_MS
    redis.call('HDEL', HOLDERS, id)
    redis.call('ZADD', CANCELLED, until_ms, id, until_ms, string.format('%s %.0f %d', id, nonce, attempts + 1))
    schedule(until_ms)
  end
  if PLACES[state] then
    redis.call('ZREM', PLACES[state], id)
  end
  redis.call('ZREM', EXPIRY, id)
  redis.call('HDEL', POOL, id)
  if state ~= 'finished' then tally('cancelled', 1) end
end

-- Put a job that was just taken from its place among the dead ones.
local function bury_job(id, record, reason, now, retention_ms)
  record.extra.d = reason
  redis.call('ZREM', EXPIRY, id)
  redis.call('HSET', POOL, id, write_record(record))
  redis.call('ZADD', DEAD, now + retention_ms, id)
  schedule(now + retention_ms)
end

-- A job with a ttl that waits for its first delivery is watched.
local function watch_expiry(id, record)
  local ttl = record.extra.x
  if ttl and ttl > 0 and record.attempts == 0 then
    redis.call('ZADD', EXPIRY, record.due + ttl, id)
    schedule(record.due + ttl)
  else
    redis.call('ZREM', EXPIRY, id)
  end
end
