-- Cancel jobs in any state. They are never handed out again; their holders' later calls get the code of cancelled jobs.
-- An id that `unique_for` keeps taken becomes free, and its state counts as finished.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] two for each job: id | + 1: refuse when a consumer holds it, + 2: its follow-up takes its
--   place; else that is cancelled too
-- Returns for each job the state it was in, or a code: 1 not found, 2 refused because a consumer holds it
-- Bound: the jobs in ARGV, at most 100.
local NOT_FOUND, HELD = 1, 2
local now = now_ms()  -- before any write: without the permission for TIME nothing may change
local ids = {}
for at = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end

local function cancel(id, flags)
  if redis.call('HEXISTS', POOL, id) == 0 then
    local taken_until = redis.call('ZSCORE', TAKEN, id)
    -- Without a write: the store may be read-only. What the timer has not removed yet is over: the id may be that of a job
    -- in another partition.
    if not (taken_until and tonumber(taken_until) > now) then return NOT_FOUND end
    redis.call('ZREM', TAKEN, id)
    return 'finished'
  end
  local state, score = state_of(id)
  if state == 'reserved' and flags % 2 == 1 then return HELD end
  remove_job(id, state, score, now, flags >= 2, '')
  return state
end

-- Most jobs that are cancelled are delayed: find and remove those together.
local delayed, is_removed, results = {}, {}, {}
for index, score in ipairs(redis.call('ZMSCORE', DELAY, unpack(ids))) do
  local id = ids[index]
  if score and not is_removed[id] and tonumber(ARGV[2 * index + 1]) < 2 then
    is_removed[id] = true
    delayed[#delayed + 1] = id
    results[index] = 'delayed'
  end
end
if #delayed > 0 then
  local have_more = any_has_more()
  if have_more and FLOWS.exist() then
    for _, id in ipairs(delayed) do FLOWS.left_raw(id, redis.call('HGET', POOL, id)) end
  end
  if have_more and ENDS.may_matter() then
    for index, raw in ipairs(redis.call('HMGET', POOL, unpack(delayed))) do ENDS.cancelled(delayed[index], raw) end
  end
  redis.call('ZREM', DELAY, unpack(delayed))
  redis.call('HDEL', POOL, unpack(delayed))
  if have_more then
    redis.call('ZREM', EXPIRY, unpack(delayed))
    index_tags(delayed)
    attached().drop(delayed)
  end
  tally('cancelled', #delayed)
  local most_events = events_to_keep()
  if most_events then
    local noted, head_of_event = {}, 'X' .. now .. ' '
    for index, id in ipairs(delayed) do noted[index] = head_of_event .. id .. ' delayed ' end
    note_events(most_events, noted)
  end
end
local any_cancelled = #delayed > 0
for index, id in ipairs(ids) do
  if not results[index] then
    results[index] = cancel(id, tonumber(ARGV[2 * index + 1]))
    any_cancelled = any_cancelled or type(results[index]) == 'string'
  end
end
-- The topic may have to be forgotten, and there may be no job left for which the timer would visit it.
if any_cancelled and redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
return results
