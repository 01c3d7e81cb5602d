-- Read what decides when a job runs: its state, its record without the body, its place in the Ready list, and its
-- topic. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] most ids to return from each end of each state when there is no such job
-- Returns { now ms, settings JSON or '', 1 when the topic is known, state, score in the sorted set of its state (0 when
--     ready), consumer or '', ready jobs, ready jobs ahead of it, due ms of the oldest ready job or -1, 1 when it has a
--     follow-up, how often its delivery was touched, ms at which it was handed out or 0, the record up to the
--     body, 1 when the groups of the topic take turns, { limits that hold it back: which one, ms at which there is room
--     again or -1, ... } }; for a job that is not ready the numbers of ready jobs are 0, 0 and -1. Where groups take turns
--     only jobs of its group count as ahead. The limits of the topic are max_in_flight and rate, those of its group
--     group_paused, group_order, group_max_in_flight and group_rate;
--   or, when there is no such job, { now ms, settings JSON or '', 1 when the topic is known, '', ms until which it is
--     remembered as cancelled or 0, ms until which its id stays taken or 0, jobs in the topic, ids of the topic ... }
-- Bound: one job, and FLOWS.MOST_LOOKED_AT heads of flows; without it 2 * ARGV[3] ids of each state. The caller sends at most 200.
local id = ARGV[2]
local settings = redis.call('HGET', SETTINGS, TOPIC)
local reply = { now_ms(), settings or '', settings and 1 or 0 }

-- Ready jobs of the job's group that go before it: those of higher priority, and those before it in its flow.
local function ahead_in_group(flow, position)
  local ahead = 0
  for priority = tonumber(string.sub(flow, 1, 1)), 9 do
    local one = priority .. ' ' .. FLOWS.group_of(flow)
    local slot, from, to = FLOWS.slot(one), FLOWS.PLAIN_FROM, '+inf'
    if slot then from, to = FLOWS.positions(slot) end
    if one == flow then to = '(' .. string.format('%.0f', position) end
    if slot or one == FLOWS.PLAIN then ahead = ahead + redis.call('ZCOUNT', READY, from, to) end
  end
  return ahead
end

-- The limits that hold a ready job of the flow back: names and times, see above.
local function limits_of_job(flow)
  local held, decoded, now = {}, stored_settings(), now_ms()
  local function add(which, room_at)
    held[#held + 1], held[#held + 2] = which, room_at or -1
  end
  local limits = decoded.li
  if limits then
    if limits.n and redis.call('ZCARD', RESERVED) >= limits.n then add('max_in_flight') end
    local window = limits.r and RATE.window(topic_key('rate/'), limits.r, now, true)
    if window and window.total >= limits.r.c then add('rate', RATE.room_at(window, limits.r)) end
  end
  local group = FLOWS.group_of(flow)
  if group ~= '' then
    local room, which, room_at = FLOWS.allowed(decoded, group, FLOWS.read(group), now, true)
    if room == 0 then add('group_' .. which, room_at) end
  end
  return held
end

local raw = redis.call('HGET', POOL, id)
if raw and #raw >= HEADER_BYTES then
  local state, score = state_of(id)
  local ready, ahead, oldest, takes_turns, limits = 0, 0, -1, 0, {}
  if state == 'ready' then
    ready = redis.call('ZCARD', READY)
    local position = redis.call('ZSCORE', READY, id)
    if position then ahead = redis.call('ZCOUNT', READY, '-inf', '(' .. position) end
    oldest = FLOWS.oldest_due(topic_key(''), FLOWS.MOST_LOOKED_AT)
    local flow = FLOWS.of_raw(raw)
    takes_turns = redis.call('EXISTS', topic_key('turns'))
    if takes_turns == 1 and position then ahead = ahead_in_group(flow, tonumber(position)) end
    limits = limits_of_job(flow)
  end
  local since, touches = 0, 0
  if state == 'reserved' then
    since = HAND_OUT.read(id, raw, score)
    touches = tonumber(redis.call('HGET', HAND_OUT.touches_key(id), HAND_OUT.touches_field(raw)) or 0)
  end
  local length = struct.unpack('<I4', raw, 23)
  local facts = {
    state, score or 0, redis.call('HGET', HOLDERS, id) or '', ready, ahead, oldest,
    attached().follow_up_of(id) and 1 or 0, touches, since, string.sub(raw, 1, HEADER_BYTES + length),
    takes_turns, limits,
  }
  for _, fact in ipairs(facts) do reply[#reply + 1] = fact end
  return reply
end

local function until_of(key)
  local score = redis.call('ZSCORE', key, id)
  return score and tonumber(score) or 0
end
for _, fact in ipairs({ '', until_of(CANCELLED), until_of(TAKEN), redis.call('HLEN', POOL) + shelved_jobs() }) do
  reply[#reply + 1] = fact
end
local most = tonumber(ARGV[3])
for _, key in ipairs({ READY, RESERVED, DELAY, DEAD, FINISHED }) do
  local count = redis.call('ZCARD', key)
  for _, one in ipairs(redis.call('ZRANGE', key, 0, most - 1)) do reply[#reply + 1] = one end
  local rest = math.min(count - most, most)
  if rest > 0 then
    for _, one in ipairs(redis.call('ZRANGE', key, -rest, -1)) do reply[#reply + 1] = one end
  end
end
return reply
