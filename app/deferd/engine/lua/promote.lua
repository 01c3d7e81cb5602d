-- The timer's visit to one topic: do the work that is due there, in one bounded step.
-- @flags allow-oom
-- KEYS: see lib/topic.lua; then KEYS[#KEYS] lock STRING, see turn.lua
-- ARGV[1] topic | ARGV[2] most jobs to move from each sorted set | ARGV[3] how long a dead job is kept, ms
-- ARGV[4] the timer's mark, part of the message that something is ready | ARGV[5] most topics to return
-- ARGV[6] the timer's name in the lock | ARGV[7] how long the lock lasts, ms
-- Returns { redelivered, expired, exhausted, retention ended, ms until the shard's next work (-1: none, 0: now),
--   { the topics that have work then, longest overdue first }, jobs whose deadline has passed,
--   { of runs of schedules that were due: how many run, were skipped, run in place of another, were missed }, or 0
--   without any,
--   how late each promoted job was, ms ... }
--   If there are ARGV[5] topics, there may be more.
-- Due jobs become ready, unless they are runs of a schedule that are missed or skipped (lib/runs.lua). Jobs whose lease
-- has ended become ready, with the attempt counted, or dead if it was the last one. Jobs whose ttl passed before a first
-- delivery, or whose deadline has passed, become dead. Records whose retention has ended are deleted, and tombstones
-- whose time has passed.
-- Afterwards `due` holds when the topic next needs a visit (now, if this one was not enough). A topic without jobs,
-- settings and paused groups into which nothing was put for FORGET_AFTER_MS is forgotten.
-- Bound: ARGV[2] for each of the sorted sets, at most FLOWS.MOST_TURNS in a topic with groups, priorities or limits, and, but
-- for those that are due, ENDS.MOST_OF_VISIT in one with jobs whose end matters; the caller sends at most 1000.
local BEFORE_LATENESS = 8
local RENEW_EVERY_MS = 100

-- What the functions below know of the call; all of it is set at its beginning.
local now, limit, dead_retention, reply
local consumers  -- of the leases that have ended: id -> the consumer that held it, if it gave its name
local first_scores  -- of sorted sets without work: their first score, infinite if they are empty

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge)
end

-- The ids in a sorted set whose time has come. Most have none.
local function due_in(key)
  local first = first_score(key)
  if first <= now then return redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit) end
  first_scores[key] = first
  return {}
end

-- Read a record; raises an error when what is needed here cannot be read or is not a number.
local function read_record_to_move(raw)
  local record = read_record(raw)
  for _, key in ipairs({ 'm', 'x', 'q', 'k', 'i', 'l', 'v' }) do
    record.extra[key] = record.extra[key] and record.extra[key] + 0
  end
  if record.extra.a and type(record.extra.a) ~= 'table' then error('no log of attempts') end
  return record
end

-- Remove jobs from `key` and return their records. An id without a readable record is only removed: data that another
-- program has damaged must not stop the timer.
local function take_records(key, ids)
  local records = {}
  for _, id in ipairs(ids) do
    redis.call('ZREM', key, id)
    local raw = redis.call('HGET', POOL, id)
    local is_read, record = pcall(read_record_to_move, raw)
    if is_read then records[#records + 1] = { id = id, record = record } end
  end
  return records
end

-- Why a lease has ended. `deadline` is that of the job, if it has one.
local function end_of_lease(id, extra, deadline)
  if deadline and deadline <= now then return 'deadline' end
  local latest = (extra.i or 0) > 0 and redis.call('ZSCORE', EXPIRY, id)
  return latest and tonumber(latest) <= now and 'time_limit' or 'lease_ended'
end

-- Count the attempt of a job whose lease has ended. Returns whether it is to be ready again; else it is dead.
local function redeliver(id, record)
  local limit_of_attempts = record.extra.m or 0
  record.attempts = record.attempts + 1
  local how = end_of_lease(id, record.extra, deadline_of(record.due, record.extra))
  log_attempt(record, now, how, consumers[id])
  if how == 'deadline' then
    record.extra.e = record.extra.e or 'the deadline passed before the job was finished'
    bury_job(id, record, 'deadline', now, dead_retention)
    reply[7] = reply[7] + 1
    return false
  end
  if limit_of_attempts > 0 and record.attempts >= limit_of_attempts then
    record.extra.e = record.extra.e or 'the lease ended before the job was finished'
    bury_job(id, record, 'attempts_exhausted', now, dead_retention)
    reply[3] = reply[3] + 1
    return false
  end
  set_retry_due(record, now)
  redis.call('HSET', POOL, id, write_record(record))
  if record.extra.i or record.extra.l then watch_expiry(id, record) end
  note_event('E', id, record.attempts, how, consumers[id] or '')
  reply[1] = reply[1] + 1
  return true
end

-- When the timer must visit a topic without work again, because it may have to be forgotten; infinite when it has just
-- been forgotten, or has settings.
local function next_visit()
  if redis.call('HGET', SETTINGS, TOPIC) ~= '' then return math.huge end
  if redis.call('HLEN', POOL) > 0 or shelved_jobs() > 0 or redis.call('EXISTS', topic_key('groups')) == 1 then
    return now + FORGET_AFTER_MS  -- also when a group is paused that has no jobs
  end
  local put = redis.call('HGET', TALLY, 'put') or '0'
  local put_before, since = string.match(redis.call('HGET', of_shard('idle'), TOPIC) or '', '^(%d+) (%d+)$')
  if put_before ~= put then
    redis.call('HSET', of_shard('idle'), TOPIC, string.format('%s %.0f', put, now))
    return now + FORGET_AFTER_MS
  end
  if since + FORGET_AFTER_MS > now then return since + FORGET_AFTER_MS end
  forget_topic()
  return math.huge
end

-- @call
now, limit, dead_retention = now_ms(), tonumber(ARGV[2]), tonumber(ARGV[3])
reply, consumers, first_scores = { 0, 0, 0, 0, -1, {}, 0, 0 }, {}, {}
local last = last_position()
local ready = {}

local due = redis.call('ZRANGE', DELAY, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
local RUNS = topic_key('runs')
-- Most topics have none of these. What only a visit with ended leases adds is looked for again below.
local has_others =
  redis.call('EXISTS', CANCELLED, TAKEN, RUNS, EXPIRY, DEAD, FINISHED, topic_key('groups'), topic_key('limited'), topic_key('ends')) > 0
local has_tombstones = has_others and redis.call('EXISTS', CANCELLED, TAKEN, RUNS) > 0
local has_flows = has_others and FLOWS.exist()
if has_flows then FLOWS.check_types() end
local flow_of = {}
if has_flows then limit = math.min(limit, FLOWS.MOST_TURNS) end
if has_others and ENDS.may_matter() then limit = math.min(limit, ENDS.MOST_OF_VISIT) end
if has_flows and #due > 0 then
  local ids = {}
  for index = 1, math.min(#due / 2, limit) do ids[index] = due[2 * index - 1] end
  -- Those whose records are more than is read in one call are for the next visit.
  local count = read_records(ids, function(index, raw) flow_of[ids[index]] = FLOWS.of_raw(raw) end)
  for at = #due, 2 * count + 1, -1 do due[at] = nil end
end
if has_tombstones and #due > 0 and redis.call('EXISTS', RUNS) == 1 then due, reply[8] = judge_runs(RUNS, due, now) end
local most_events = #due > 0 and events_to_keep()
local noted = most_events and {}
local last_due, late  -- most jobs of a batch are due at the same instant
for index = 1, #due / 2 do
  local due_at = due[2 * index]
  if due_at ~= last_due then last_due, late = due_at, now - tonumber(due_at) end
  ready[index] = due[2 * index - 1]
  reply[BEFORE_LATENESS + index] = late
  if noted then noted[index] = 'R' .. now .. ' ' .. ready[index] .. ' ' .. due_at end
end
if #ready > 0 then
  redis.call('ZREMRANGEBYRANK', DELAY, 0, #ready - 1)
  local flows = has_flows and {}
  for index, id in ipairs(has_flows and ready or {}) do flows[index] = flow_of[id] or FLOWS.PLAIN end
  last = append_ready(ready, last, not has_flows, flows)
  if noted then note_events(most_events, noted) end
end

local redelivered, wakes = {}, false
local ended_leases = due_in(RESERVED)
if #ended_leases > 0 then
  if redis.call('EXISTS', HOLDERS) == 1 then
    for index, consumer in ipairs(redis.call('HMGET', HOLDERS, unpack(ended_leases))) do
      consumers[ended_leases[index]] = consumer
    end
  end
  forget_holders(ended_leases)
  local settings = stored_settings()
  for _, job in ipairs(take_records(RESERVED, ended_leases)) do
    if redeliver(job.id, job.record) then
      if FLOWS.keep_place(settings, job.id, job.record.extra) then
        prepend_ready(job.id)
        wakes = true
      else
        redelivered[#redelivered + 1] = job.id
      end
    end
  end
end

if #redelivered > 0 then append_ready(redelivered, last, not has_flows) end
local room_at = has_flows and FLOWS.visit(now, limit) or math.huge
if #ready + #redelivered > 0 or wakes then wake_consumers(ARGV[4]) end

-- Whether there are jobs that become dead or are deleted at some time. Nothing below adds the first one.
local has_ends = (has_others or #ended_leases > 0) and redis.call('EXISTS', EXPIRY, DEAD, FINISHED) > 0
local overdue = {}
local due_to_die = has_ends and due_in(EXPIRY) or {}
if #due_to_die > 0 then
  -- Leases end before the time limit and deadline do: a visit that leaves some leases for the next one leaves these
  -- too. A longer lease, from a version without them, ends in the next visit, else this topic would be due meanwhile.
  for index, lease_end in ipairs(redis.call('ZMSCORE', RESERVED, unpack(due_to_die))) do
    local id = due_to_die[index]
    if not lease_end then
      overdue[#overdue + 1] = id
    elseif tonumber(lease_end) > now then
      local is_read, extra = pcall(read_extra, redis.call('HGET', POOL, id))
      if is_read and not (extra.i or extra.l) then
        redis.call('ZREM', EXPIRY, id)  -- left over, as below
      else
        redis.call('ZADD', RESERVED, now, id)
        first_scores[RESERVED] = nil
      end
    end
  end
end
for _, job in ipairs(take_records(EXPIRY, overdue)) do
  -- An entry that was left over from an earlier job with this id, or from one that has ended, must end nothing.
  local expiry, reason = end_of_waiting(job.record)
  if expiry and expiry > now then
    watch_expiry(job.id, job.record)
  elseif expiry and redis.call('ZREM', DELAY, job.id) + redis.call('ZREM', READY, job.id) > 0 then
    bury_job(job.id, job.record, reason, now, dead_retention)
    local counter = reason == 'deadline' and 7 or 2
    reply[counter] = reply[counter] + 1
  end
end

for _, key in ipairs(has_ends and { DEAD, FINISHED } or {}) do
  local ids = due_in(key)
  if #ids > 0 then
    redis.call('ZREM', key, unpack(ids))
    local dropped = redis.call('HDEL', POOL, unpack(ids))
    if key == DEAD then tally('dropped', dropped) end
    if any_has_more() then
      index_tags(ids)
      attached().drop(ids)
    end
    note_event('Z', '-', #ids, key == DEAD and 'dead' or 'finished', 'retention')
    reply[4] = reply[4] + #ids
  end
end
local TOMBSTONES = has_tombstones and { CANCELLED, TAKEN } or {}
for _, key in ipairs(TOMBSTONES) do
  local ended = due_in(key)
  if #ended > 0 then redis.call('ZREM', key, unpack(ended)) end
end

local next_ms = room_at
local timed = has_ends and { DELAY, RESERVED, EXPIRY, DEAD, FINISHED } or { DELAY, RESERVED }
for _, key in ipairs(TOMBSTONES) do timed[#timed + 1] = key end
for _, key in ipairs(timed) do
  next_ms = math.min(next_ms, first_scores[key] or first_score(key))
end
if next_ms == math.huge then next_ms = next_visit() end
if next_ms == math.huge then
  redis.call('ZREM', DUE, TOPIC)
else
  redis.call('ZADD', DUE, next_ms, TOPIC)  -- unless it is planned for then already: that changes nothing, without an fsync
end
local first = redis.call('ZRANGE', DUE, 0, 1, 'WITHSCORES')
if first[2] then
  local next_work = math.max(tonumber(first[2]), now)
  reply[5] = next_work - now
  reply[6] = { first[1] }
  if first[4] and tonumber(first[4]) <= next_work then
    reply[6] = redis.call('ZRANGE', DUE, '-inf', next_work, 'BYSCORE', 'LIMIT', 0, ARGV[5])
  end
end

-- A lock holder that did work renews its lock, with a write that shares the fsync of those above.
local LOCK = KEYS[#KEYS]
local done = #ready + reply[1] + reply[2] + reply[3] + reply[4] + reply[7]
if (done > 0 or reply[8] ~= 0) and redis.call('PTTL', LOCK) < ARGV[7] - RENEW_EVERY_MS
  and redis.call('GET', LOCK) == ARGV[6] then
  redis.call('PEXPIRE', LOCK, ARGV[7])
end
return reply
