-- Finish jobs of one topic. A job with a retain time is kept as finished with its result, others are gone.
-- @include clock topic record places delivery
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] four for each job: id | nonce | attempt (0: whichever delivery is live) | result JSON
-- Returns a code for each: 0 finished (or it was, by the same delivery), 1 not found, 2 receipt stale, 3 cancelled
-- Bound: the jobs given, at most 1000.
local now = now_ms()
local answers = {}
for at = 2, #ARGV, 4 do
  local id, nonce, attempt, result = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  local answer, raw = find_delivery(id, nonce, attempt, now)
  if answer == LIVE then
    redis.call('ZREM', RESERVED, id)
    redis.call('HDEL', HOLDERS, id)
    local retain = read_extra(raw).r or 0
    if retain > 0 then
      local record = read_record(raw)
      record.attempts = record.attempts + 1
      record.extra.f = now
      if result ~= '' then
        record.extra.n = #result
        record.rest = result .. record.rest
      end
      redis.call('HSET', POOL, id, write_record(record))
      redis.call('ZADD', FINISHED, now + retain, id)
      schedule(now + retain)
    else
      redis.call('HDEL', POOL, id)
    end
  elseif answer == STALE and redis.call('ZSCORE', FINISHED, id) then
    -- The same finish again, because its answer was lost, does no harm.
    local finished_nonce, attempts = read_nonce_and_attempts(redis.call('HGET', POOL, id))
    if finished_nonce == nonce and attempts == attempt then answer = LIVE end
  end
  answers[#answers + 1] = answer
end
return answers
