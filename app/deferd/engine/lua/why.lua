-- Read what decides when a job runs: its state, its record without the body, its place in the Ready list, and its
-- topic. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] most ids to return from each end of each state when there is no such job
-- Returns { now ms, settings JSON or '', 1 when the topic is known, state, score in the sorted set of its state (0 when
--     ready), consumer or '', ready jobs, ready jobs ahead of it, due ms of the oldest ready job or -1, 1 when it has a
--     follow-up, how often its delivery was touched, ms at which it was handed out or 0, the record up to the
--     body }; for a job that is not ready the numbers of ready jobs are 0, 0 and -1;
--   or, when there is no such job, { now ms, settings JSON or '', 1 when the topic is known, '', ms until which it is
--     remembered as cancelled or 0, ms until which its id stays taken or 0, jobs in the topic, ids of the topic ... }
-- Bound: one job; without it 2 * ARGV[3] ids of each state. The caller sends at most 200.
local id = ARGV[2]
local settings = redis.call('HGET', SETTINGS, TOPIC)
local reply = { now_ms(), settings or '', settings and 1 or 0 }

local function due_of(raw)
  if not raw or #raw < HEADER_BYTES then return -1 end
  local _, due = struct.unpack('<I6I6', raw)
  return due
end

local raw = redis.call('HGET', POOL, id)
if raw and #raw >= HEADER_BYTES then
  local state, score = state_of(id)
  local ready, ahead, oldest = 0, 0, -1
  if state == 'ready' then
    ready = redis.call('ZCARD', READY)
    local position = redis.call('ZSCORE', READY, id)
    if position then ahead = redis.call('ZCOUNT', READY, '-inf', '(' .. position) end
    local first = redis.call('ZRANGE', READY, 0, 0)[1]
    oldest = due_of(first and redis.call('HGET', POOL, first))
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
