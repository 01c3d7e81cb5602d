-- The schedules of a shard that must be advanced now. A next run that was rescheduled to now, and so never waited to be
-- due, is counted as run. As long as the shard's runs were not all derived by the caller's release of the time zones, and
-- few must be advanced, these are also some of the others that are active, so that their next runs are derived again.
-- @flags allow-oom
-- KEYS[1] schedule_due ZSET, KEYS[2] schedules ZSET and KEYS[3] schedules/zones STRING, see lib/schedules.lua
-- KEYS[4] due ZSET topic -> ms
-- ARGV[1] most schedules to return | ARGV[2] the caller's release of the zones
-- ARGV[3] the last of those that it has derived again, '' to begin
-- Returns { now ms, 0 when nothing is to be derived again, else 1, or 2 when this was the last step, ARGV[3] for the next
--   step, for each schedule: name, { rev, topic, definition, state, next_id, next, runs, waiting, length of rest,
--   1 when its next run waits as it was put, else 0 } }, those due longest first.
--   Afterwards `due` says when the timer must visit the schedules again.
-- Bound: ARGV[1] schedules, and 100 names; the caller sends at most 100.
local UP_TO_DATE, MORE, LAST_STEP = 0, 1, 2
local MOST_NAMES = 100
local SCHEDULE_DUE, SCHEDULES, ZONES, DUE_OF_SHARD = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most, after = tonumber(ARGV[1]), ARGV[3]
local PREFIX = string.sub(DUE_OF_SHARD, 1, -4)
local now = now_ms()
local names = redis.call('ZRANGE', SCHEDULE_DUE, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
local progress = UP_TO_DATE
if redis.call('GET', ZONES) ~= ARGV[2] and redis.call('EXISTS', SCHEDULES) == 1 then
  progress = MORE
  if #names < most then
    local others = redis.call('ZRANGE', SCHEDULES, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, MOST_NAMES)
    local looked = 0
    while looked < #others and #names < most do
      looked = looked + 1
      after = others[looked]
      local advance_at = redis.call('ZSCORE', SCHEDULE_DUE, after)
      if advance_at and tonumber(advance_at) > now then names[#names + 1] = after end
    end
    if looked == #others and looked < MOST_NAMES then progress = LAST_STEP end
  end
end

local reply = { now, progress, after }
for _, name in ipairs(names) do
  local key = PREFIX .. 'schedule/' .. name
  local topic, next_id = unpack(redis.call('HMGET', key, 'topic', 'next_id'))
  if not topic then
    redis.call('ZREM', SCHEDULE_DUE, name)
  else
    local of_topic = PREFIX .. topic .. ':'
    local entry = next_id and next_id ~= '' and redis.call('HGET', of_topic .. 'runs', next_id)
    local due = entry and redis.call('ZSCORE', of_topic .. 'delay', next_id)
    if entry and not due then
      redis.call('HDEL', of_topic .. 'runs', next_id)
      settle_run(PREFIX .. 'schedule/', next_id, entry, 'runs')
    end
    local fields = redis.call('HMGET', key, 'rev', 'topic', 'definition', 'state', 'next_id', 'next', 'runs', 'waiting')
    fields[9] = redis.call('HSTRLEN', key, 'rest')
    local planned = due and string.match(entry, '^%S+ (%d+) ')
    fields[10] = planned and tonumber(due) == tonumber(planned) and tonumber(due) > now and 1 or 0
    reply[#reply + 1] = name
    reply[#reply + 1] = fields
  end
end
plan_visit(SCHEDULE_DUE, DUE_OF_SHARD)
return reply
