-- Cancel jobs in any state. After this they are never handed out, and their holders, if any, are told (410).
-- @include clock topic record transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] two for each job: id | 1: refuse when a consumer holds it
-- Returns for each job the state it was in; or 1 not found, 2 refused, a consumer holds it
-- Bound: the jobs given, at most 100.
local NOT_FOUND, HELD = 1, 2
local now = now_ms()
local ids = {}
for at = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end

local function cancel(id, refuse_reserved)
  if redis.call('HEXISTS', POOL, id) == 0 then return NOT_FOUND end
  local state, score = state_of(id)
  if state == 'reserved' and refuse_reserved then return HELD end
  remove_job(id, state, score, now)
  return state
end

-- Nearly all are delayed: those are found and removed together.
local delayed, is_removed, answers = {}, {}, {}
for index, score in ipairs(redis.call('ZMSCORE', DELAY, unpack(ids))) do
  local id = ids[index]
  if score and not is_removed[id] then
    is_removed[id] = true
    delayed[#delayed + 1] = id
    answers[index] = 'delayed'
  end
end
if #delayed > 0 then
  redis.call('ZREM', DELAY, unpack(delayed))
  redis.call('ZREM', EXPIRY, unpack(delayed))
  redis.call('HDEL', POOL, unpack(delayed))
  tally('cancelled', #delayed)
end
local was_any_cancelled = #delayed > 0
for index, id in ipairs(ids) do
  if not answers[index] then
    answers[index] = cancel(id, ARGV[2 * index + 1] == '1')
    was_any_cancelled = was_any_cancelled or type(answers[index]) == 'string'
  end
end
-- The topic may be forgotten one day, and the job that the timer was to come for is gone.
if was_any_cancelled and redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
return answers
