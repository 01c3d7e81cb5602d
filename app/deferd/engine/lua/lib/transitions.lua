-- A job's state is the sorted set that holds its id: each job in the pool is in exactly one of these.
-- @include topic events tags record flows ends
local PLACES = { delayed = 2, ready = 3, reserved = 4, dead = 5, finished = 6 }

-- The key of that set, nil for any other word.
local function set_of(state) return KEYS[PLACES[state]] end

-- The state of a job in the pool, and its score (nil when ready: positions are internal). A job that is in none of the
-- sets, in a damaged store, counts as ready; a repair puts it back into the Ready list.
local function state_of(id)
  local score = redis.call('ZSCORE', DELAY, id)
  if score then return 'delayed', tonumber(score) end
  if redis.call('ZSCORE', READY, id) then return 'ready', nil end
  score = redis.call('ZSCORE', RESERVED, id)
  if score then return 'reserved', tonumber(score) end
  score = redis.call('ZSCORE', DEAD, id)
  if score then return 'dead', tonumber(score) end
  score = redis.call('ZSCORE', FINISHED, id)
  if score then return 'finished', tonumber(score) end
  return 'ready', nil
end

-- The last position in the Ready list. Scripts read it before their first write: it fails for a key of the wrong type,
-- as an earlier layout had, and then nothing may be half done.
-- Those of flows (lib/flows.lua) come before all others.
local function last_position()
  local last = tonumber(redis.call('ZRANGE', READY, -1, -1, 'WITHSCORES')[2] or 0)
  return last >= FLOWS.PLAIN_FROM and last or 0
end

-- Append jobs to the Ready list after `position`, in this order, and return the new last position. None of them may be
-- in the list, and their records must be stored. `are_plain`: none has a group or a priority. `flows`: see FLOWS.append.
-- Bound: the ids, at most 2000.
local function append_ready(ids, position, are_plain, flows)
  if not are_plain and FLOWS.exist() then return FLOWS.append(ids, position, flows) end
  local members = {}
  for index, id in ipairs(ids) do
    members[2 * index - 1] = position + index
    members[2 * index] = id
  end
  redis.call('ZADD', READY, unpack(members))
  return position + #ids
end

-- Put one job at the head of the Ready list.
local function prepend_ready(id)
  if FLOWS.exist() then return FLOWS.prepend(id) end
  local first = redis.call('ZRANGE', READY, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', READY, first and tonumber(first) - 1 or 0, id)
end

-- The key of the runs that wait besides the next ones of their schedules (lib/schedules.lua). `prefix` begins the keys of
-- schedules.
local function earlier_runs_key(prefix) return string.sub(prefix, 1, -1 - #'schedule/') .. 'earlier_runs' end

-- Note that a run of a schedule does not wait any more.
local function forget_earlier_run(prefix, name, id)
  redis.pcall('ZREM', earlier_runs_key(prefix), name .. ' ' .. id)  -- an error when another program has damaged it
end

-- Note what became of a run of a schedule that waited to be due and is not in `runs` any more: `outcome` is runs, skips
-- or missed. `entry` is what `runs` had for it; `prefix` begins the keys of schedules.
local function settle_run(prefix, id, entry, outcome)
  local name, planned, overlap = string.match(entry, '^(%S+) (%d+) %d+ (%a+)')
  if not name then return end
  forget_earlier_run(prefix, name, id)
  local waiting, count, last_id, late_ids =
    unpack(redis.call('HMGET', prefix .. name, 'waiting', outcome, 'last_id', 'late_ids'))
  if not waiting then return end
  local changes = { 'waiting', (tonumber(waiting) or 1) - 1, outcome, (tonumber(count) or 0) + 1 }
  if outcome == 'runs' and (last_id or '') < id then
    changes[5], changes[6], changes[7], changes[8] = 'last', planned, 'last_id', id
  elseif outcome == 'runs' and overlap ~= 'allow' then
    changes[5], changes[6] = 'late_ids', (late_ids or '') .. ' ' .. id
  end
  redis.call('HSET', prefix .. name, unpack(changes))
end

-- What is attached to jobs, in further keys of the topic that few topics have, so that they are not in KEYS:
--   follow      HASH id -> the record of the job that waits until the one with this id has ended, its follow-up.
--               That one is delayed, ready or reserved, and its record has `o`
--   items       HASH id -> bytes of the items collected under it: those of the job, or of its follow-up. In that record
--               `y` is 0 and the body is []
--   items/<id>  LIST those items, JSON values
--   runs        HASH id -> "name planned following overlap catch_up": the job is a run of the schedule `name` that waits
--               to be due, at `planned` ms. The run after it is due at `following` ms, 0 for none. What the words mean:
--               contract/operations/schedules_and_calendars.py
-- This returns the functions for it, which are made when a call of the store first needs them.
local made_attached
local function attached()
  if made_attached then return made_attached end
  local follow, items, runs = topic_key('follow'), topic_key('items'), topic_key('runs')
  local found  -- whether anything is there, nil before this is needed
  local here = { FOLLOW = follow, ITEMS = items, RUNS = runs }
  made_attached = here

  -- For a topic that has nothing this is one command in the whole script.
  function here.may_exist()
    if found == nil then found = redis.call('EXISTS', follow, items, runs) > 0 end
    return found
  end

  -- Note that something was stored.
  function here.note_stored() found = true end

  function here.items_key(id) return topic_key('items/') .. id end

  -- The record of a job's follow-up, nil for none.
  function here.follow_up_of(id) return here.may_exist() and redis.call('HGET', follow, id) or nil end

  -- Delete the items that are collected under ids. Bound: the ids, at most 1000.
  function here.drop_items(ids)
    for index, bytes in ipairs(redis.call('HMGET', items, unpack(ids))) do
      if bytes then redis.call('UNLINK', here.items_key(ids[index])) end
    end
    redis.call('HDEL', items, unpack(ids))
  end

  -- Forget what waits for jobs that are deleted: their follow-ups and collected items. A run that waited to be due
  -- counts as skipped. Bound: the ids, at most 1000.
  function here.drop(ids)
    if not here.may_exist() then return end
    redis.call('HDEL', follow, unpack(ids))
    here.drop_items(ids)
    here.settle_runs(ids, 'skips')
  end

  -- Note what became of jobs that may be runs of a schedule and do not wait to be due any more: runs, or skips.
  function here.settle_runs(ids, outcome)
    if not here.may_exist() then return end
    local entries = redis.call('HMGET', runs, unpack(ids))
    redis.call('HDEL', runs, unpack(ids))
    for index, entry in ipairs(entries) do
      if entry then settle_run(of_shard('schedule/'), ids[index], entry, outcome) end
    end
  end

  -- Whether a record's items are collected in a list.
  function here.is_open(raw) return read_extra(raw).y == 0 end

  -- A record whose items are collected in a list, with all of them as its body.
  function here.with_items(id, raw)
    local record = read_record(raw)
    local values = redis.call('LRANGE', here.items_key(id), 0, -1)
    record.extra.y = #values
    record.rest = '[' .. table.concat(values, ',') .. ']'
    return write_record(record)
  end

  -- How long a job waits at most until its first delivery, in ms; 0 for no limit.
  function here.longest_wait(extra)
    local wait, deadline = extra.x or 0, extra.l or 0
    return deadline > 0 and (wait == 0 or deadline < wait) and deadline or wait
  end

  -- Put a job's follow-up in its place: it is due as it was put, but not before `earliest`. The job must have left its
  -- sorted set. `error` is that of the job, if it died; `finished_by` the receipt of the delivery that finished it, if
  -- one did. Returns false when there is no follow-up that can be read.
  function here.start_follow_up(id, earliest, error, finished_by)
    local is_read, record = pcall(read_record, here.follow_up_of(id) or '')
    if not is_read then return false end  -- a consistency check moves one aside that cannot be read
    redis.call('HDEL', follow, id)
    redis.call('ZREM', EXPIRY, id)
    redis.call('ZREM', CANCELLED, id)  -- calls without a receipt now mean this job
    local extra = record.extra
    if record.due < earliest then record.due, extra.sh = earliest, nil end
    extra.e, extra.p = error, finished_by
    redis.call('HSET', POOL, id, write_record(record))
    index_tags({ id }, extra.g)
    redis.call('ZADD', DELAY, record.due, id)  -- also when it is due now: the timer appends it to the Ready list
    schedule(record.due)
    local wait = here.longest_wait(extra)
    if wait > 0 then
      redis.call('ZADD', EXPIRY, record.due + wait, id)
      schedule(record.due + wait)
    end
    tally('put', 1)
    FLOWS.joined(extra)
    note_event('P', id, record.due)
    return true
  end

  return here
end

-- Whether any job of the topic has more than a record and a place in a sorted set: a ttl or deadline, tags, a
-- follow-up, collected items, a schedule, a group or a priority, or an end that matters. Few topics have such jobs, and this is one command.
local function any_has_more()
  return FLOWS.states ~= nil or redis.call('EXISTS', EXPIRY, TAGGED, topic_key('follow'), topic_key('items'), topic_key('runs'), topic_key('groups'), topic_key('ends')) > 0
end

-- How long after the end of its lease the holder of a cancelled job still gets the code of cancelled jobs.
local TOMBSTONE_MS = 60000

-- Delete a job. Later calls of a reserved job's holder get the code of cancelled jobs. What waits for it is deleted
-- too, or, with `keep_follow_up`, takes its place, but not before the end of its lease: the holder may still be at
-- work. With `why`, '' or a word, this is noted as an event: '' is a cancel, and overlapped too is the end of the job.
local function remove_job(id, state, score, now, keep_follow_up, why)
  local has_more = any_has_more()
  if state == 'reserved' then forget_holders({ id }) end
  if has_more and state ~= 'dead' and state ~= 'finished' and FLOWS.exist() then
    FLOWS.left_raw(id, redis.call('HGET', POOL, id))
  end
  if has_more and (why == '' or why == 'overlapped') and state ~= 'dead' and state ~= 'finished' and ENDS.may_matter() then
    ENDS.cancelled(id, redis.call('HGET', POOL, id))
  end
  redis.call('ZREM', set_of(state), id)
  if why then note_event('X', id, state, why) end
  if state == 'reserved' then
    local nonce, attempts = read_nonce_and_attempts(redis.call('HGET', POOL, id))
    local until_ms = math.max(score, now) + TOMBSTONE_MS
    redis.call('ZADD', CANCELLED, until_ms, id, until_ms, string.format('%s %.0f %d', id, nonce, attempts + 1))
    schedule(until_ms)
    tell_pushers(id)
  end
  redis.call('HDEL', POOL, id)
  if state == 'finished' then redis.call('ZREM', TAKEN, id) else tally('cancelled', 1) end
  if not has_more then return end
  redis.call('ZREM', EXPIRY, id)
  index_tags({ id })
  local earliest = state == 'reserved' and math.max(score, now) or now
  local here = attached()
  if not (keep_follow_up and here.start_follow_up(id, earliest)) then here.drop({ id }) end
end

-- Make a job dead that was just removed from its sorted set. One with a follow-up is dropped: that takes its place. One
-- that is not kept when it is dead is deleted.
local function bury_job(id, record, reason, now, retention_ms)
  FLOWS.left(id, record.extra)
  record.extra.d, record.extra.da = reason, now
  if ENDS.matters(record.extra) then ENDS.ended(id, record, 'dead') end
  retention_ms = math.min(record.extra.q or retention_ms, record.extra.k or math.huge)
  local is_kept = retention_ms > 0 and not record.extra.o
  note_event('D', id, record.attempts, reason, is_kept and 1 or 0, record.extra.e or '')
  if record.extra.o and attached().start_follow_up(id, now, record.extra.e) then
    tally('dropped', 1)
    return
  end
  redis.call('ZREM', EXPIRY, id)
  if retention_ms == 0 then
    redis.call('HDEL', POOL, id)
    if record.extra.g then index_tags({ id }) end
    if record.extra.y == 0 then attached().drop({ id }) end
    tally('dropped', 1)
    return
  end
  redis.call('HSET', POOL, id, write_record(record))
  redis.call('ZADD', DEAD, now + retention_ms, id)
  schedule(now + retention_ms)
end
