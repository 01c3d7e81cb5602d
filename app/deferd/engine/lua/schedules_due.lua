-- The schedules of a shard that must be advanced now. A next run that was rescheduled to now, and so never waited to be
-- due, is counted as run.
-- @include clock topic record transitions schedules
-- KEYS[1] schedule_due ZSET, see lib/schedules.lua | KEYS[2] due ZSET topic -> ms
-- ARGV[1] most schedules to return
-- Returns { now ms, for each schedule: name, { rev, topic, definition, state, next_id, runs, waiting, length of rest } },
--   those due longest first. Afterwards `due` says when the timer must visit the schedules again.
-- Bound: ARGV[1] schedules; the caller sends at most 100.
local PREFIX = string.sub(KEYS[2], 1, -4)
local now = now_ms()
local reply = { now }
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1])) do
  local key = PREFIX .. 'schedule/' .. name
  local topic, next_id = unpack(redis.call('HMGET', key, 'topic', 'next_id'))
  if not topic then
    redis.call('ZREM', KEYS[1], name)
  else
    local of_topic = PREFIX .. topic .. ':'
    local entry = next_id and next_id ~= '' and redis.call('HGET', of_topic .. 'runs', next_id)
    if entry and not redis.call('ZSCORE', of_topic .. 'delay', next_id) then
      redis.call('HDEL', of_topic .. 'runs', next_id)
      settle_run(PREFIX .. 'schedule/', next_id, entry, 'runs')
    end
    local fields = redis.call('HMGET', key, 'rev', 'topic', 'definition', 'state', 'next_id', 'runs', 'waiting')
    fields[8] = redis.call('HSTRLEN', key, 'rest')
    reply[#reply + 1] = name
    reply[#reply + 1] = fields
  end
end
plan_visit(KEYS[1], KEYS[2])
return reply
