-- Check one topic as a whole, at one instant: it is listed, its timer visit is scheduled in time, its sums are right.
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] unreadable settings to move aside if they are still the same; '' for none
-- Returns { { kind, subject, detail, ... } for each finding, settings JSON, '', or nil when the topic is not known,
--   delayed, ready, reserved, dead, finished, now ms, ms of the timer's first work or -1,
--   of all jobs: put, finished, cancelled, dropped, lost }, or nil when the store has no data of the topic
--   After a repair, all but the findings is as repaired.
-- Bound: one topic.
local OUTCOMES = { 'put', 'finished', 'cancelled', 'dropped', 'lost' }
local now = now_ms()

if REPAIR and ARGV[3] ~= '' and redis.call('HGET', SETTINGS, TOPIC) == ARGV[3] then
  redis.call('HSET', SETTINGS, TOPIC, '')
  redis.call('HSET', ASIDE, string.format('settings %.0f', now), ARGV[3])
end

local function is_there()
  local kept = redis.call('EXISTS', POOL, DELAY, READY, RESERVED, DEAD, FINISHED, EXPIRY, HOLDERS, TALLY, REQUESTS,
    TAGGED, TAKEN, attached().FOLLOW, attached().ITEMS, attached().RUNS, topic_key('groups'))
  return kept > 0
end

local settings = redis.call('HGET', SETTINGS, TOPIC)
local is_listed = redis.call('ZSCORE', TOPICS, TOPIC) and true or false
local is_known = settings and true or false
if not is_known and not is_listed and not is_there() then return nil end
if not (is_known and is_listed) then
  report('unknown_topic', TOPIC, is_known and 'not in topics' or is_listed and 'not in settings' or 'in neither')
  if REPAIR then
    redis.call('HSETNX', SETTINGS, TOPIC, '')
    redis.call('ZADD', TOPICS, 0, TOPIC)
    settings = settings or ''
  end
end

local first_work = math.huge
for _, key in ipairs({ DELAY, RESERVED, EXPIRY, DEAD, FINISHED, CANCELLED, TAKEN }) do
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head[2] then first_work = math.min(first_work, tonumber(head[2])) end
end
local room_at = tonumber(redis.call('ZRANGE', topic_key('limited'), 0, 0, 'WITHSCORES')[2] or FLOWS.NEVER)
if room_at < FLOWS.NEVER then first_work = math.min(first_work, room_at) end
local planned = redis.call('ZSCORE', DUE, TOPIC)
if first_work < math.huge and not (planned and tonumber(planned) <= first_work) then
  report('timer_late', TOPIC, string.format('planned at %s, first work at %.0f', planned or 'no time', first_work))
  if REPAIR then schedule(first_work) end
end

local tallied, faulty = {}, false
for index, value in ipairs(redis.call('HMGET', TALLY, unpack(OUTCOMES))) do
  local count = value and string.match(value, '^%d+$') and tonumber(value)
  tallied[index] = count or 0
  if value and not count then
    faulty = true
    if REPAIR then redis.call('HDEL', TALLY, OUTCOMES[index]) end
  end
end
local shelved, finished = shelved_jobs(), redis.call('ZCARD', FINISHED)
local pooled = redis.call('HLEN', POOL) + shelved
local lost = tallied[1] - tallied[2] - tallied[3] - tallied[4] - tallied[5] - (pooled - finished)
if faulty or lost ~= 0 then
  local shape = lost > 0 and '%.0f jobs are missing: %.0f put, %.0f accounted for'
    or '%.0f jobs too many: %.0f put, %.0f accounted for'
  report('tally_off', TOPIC, string.format(shape, math.abs(lost), tallied[1], tallied[1] - lost))
  if REPAIR then
    -- Missing jobs are counted as lost, surplus ones as put, so that no count ever decreases.
    local index = lost > 0 and 5 or 1
    tallied[index] = tallied[index] + math.abs(lost)
    redis.call('HSET', TALLY, OUTCOMES[index], string.format('%.0f', tallied[index]))
  end
end
return {
  findings, settings, redis.call('ZCARD', DELAY) + shelved, redis.call('ZCARD', READY), redis.call('ZCARD', RESERVED),
  redis.call('ZCARD', DEAD), finished, now, first_work < math.huge and first_work or -1,
  unpack(tallied),
}
