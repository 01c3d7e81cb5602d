-- Put jobs into one topic. Each is stored completely, or not at all, with a code for the reason.
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- ARGV[2] 0: return only the codes. Otherwise also the jobs as they are stored; of those that existed already only as
--   many as have this number of bytes together, and for the others the code alone
-- ARGV[3] the terms of the call, see engine/placement.py: the default durability of the topic that it satisfies, a level of
--   store/durability_levels.py, i16, -1: any | the number of the topic's partitions, u16 | in which generation the shelf was
--   asked for the ids, u64 | the topic's defaults by which the due times were placed, `pl` of its settings. '' in a script that embeds this one: they are not compared
-- ARGV[4..] two for each job: id | job, which consists of
--   options u8: on conflict 0 reject, 1 keep, 2 replace, 3 append (then extra has `z`, the most bytes of a body, and
--   maybe
--     `y`, the number of items from which on the job is due); + 4: only a live job is a conflict; + 8: while a consumer
--     holds the job, the put waits as its follow-up; + 16: extra has `w`, the ms from the first put within which a
--     replaced job is due at the latest; + 32: extra has `gr`, a group, or `pr`, a priority; + 64: its end matters
--     (lib/ends.lua) |
--   0 delay, 1 instant u8 | that delay or instant, ms u64 | nonce u64 |
--   the number of live jobs in the topic from which on the put is refused, 0: only the topic's limit, u32 |
--   the rest of a record as in lib/record.lua: length of extra u32 | extra | body; the `ba` of a job of a batch is the name
--   alone
-- Returns { 'terms', ... } of lib/terms.lua when ARGV[3] is outdated; otherwise
--   { 'done', the topic's max_jobs or 0, for each job a code or a table, the topic's default durability }:
--   { code, state, record, lease end ms, consumer }: 1 created, 2 kept, 3 replaced, 4 appended
--   { 5 to 8, 'delayed', record }: 5 stored as follow-up, 6 that was kept, 7 replaced, 8 appended to
--   { 2, state } for a kept job that is not returned
--   -1 the id is taken: { -1, state, until when its retention or `unique_for` takes the id, ms, else 0 }
--   -2 a consumer holds the job, -3 the topic is full, -4 the items would be too many or too large
--   -6 there is no such batch in the shard, -7 it is sealed (not in a script that embeds this one)
-- Bound: the caller sends at most 1000 jobs. To learn that jobs exist, at most READ_AT_ONCE are read in vain.
local REJECT, KEEP, REPLACE, DELAY_GIVEN = 0, 1, 2, 0
local CREATED, KEPT, REPLACED, FOLLOWS, FOLLOW_UP_KEPT, EXISTS, HELD, FULL = 1, 2, 3, 5, 6, -1, -2, -3
local HAS_FLOW, HAS_END = 32, 64
local TOGETHER = 100
local READ_AT_ONCE = 16
local PLACED_ONLY = '^{"[ws][ip]":'  -- engine/placement.py adds these keys after all others
local OF_END = { oe = true }
local NO_ATTEMPTS = '\0\0\0\0'

-- What the functions below know of the call; all of it is set at its beginning.
local read, write, call
local now, kept_room, with_records, last, max_jobs, partitions, topic_defaults
local live  -- the number of live jobs, counted when first needed
local noted  -- events; one table, as it is a local of several functions
local delayed, ready, watched, earliest, has_ready
local is_embedded  -- whether another script has made the call, and has checked before that all jobs can be put
local has_flows  -- whether any job of the call has a group or a priority
local last_due, last_due_text  -- most jobs of a batch are due at the same instant
local has_tombstones, has_taken
local head_due, head  -- of the last record, for all jobs with the same due instant
local special  -- the functions of lib/collapsing.lua, once a job needs them
local results, put_now

-- How many more jobs the topic may hold, when the put itself allows `bound` live jobs (0: any number). Each partition may
-- hold its share.
local function room_within(bound)
  local most = max_jobs > 0 and max_jobs or math.huge
  if bound > 0 then most = math.min(most, bound) end
  if most == math.huge then return most end
  live = live or live_jobs()
  return math.ceil(most / partitions) - live
end

-- The rest of a job's record with the topic's defaults filled in, how long it may wait after it is due, its tags, and its
-- batch, see BATCHES.to_join; nil for none.
local function complete(rest, length, is_as_sent)
  if not topic_defaults and (length == 0 or is_as_sent and string.find(rest, PLACED_ONLY, 5)) then return rest, nil end
  local policy = length == 0 and {} or cjson.decode(string.sub(rest, 5, 4 + length))
  for key, value in pairs(topic_defaults or {}) do
    if policy[key] == nil then policy[key] = value end
  end
  local batch = policy.ba and BATCHES.to_join(policy.ba, now, is_embedded)
  if batch then policy.ba = batch.ba end
  if topic_defaults or batch then
    local extra = cjson.encode(policy)
    rest = write('<I4', #extra) .. extra .. string.sub(rest, 5 + length)
  end
  local wait, deadline = policy.x, policy.l
  if deadline and deadline > 0 and not (wait and wait > 0 and wait < deadline) then wait = deadline end
  return rest, wait, policy.g, batch
end

-- Whether a put may make a job ready at once.
local function may_become_ready(job)
  local options, kind, ms = read('<BBI8', job)
  return options > REPLACE or ms <= (kind == DELAY_GIVEN and 0 or now)
end

local function flush()
  if #ready > 0 then last = append_ready(ready, last, not has_flows) end
  if #delayed > 0 then redis.call('ZADD', DELAY, unpack(delayed)) end
  if #watched > 0 then redis.call('ZADD', EXPIRY, unpack(watched)) end
  delayed, ready, watched = {}, {}, {}
end

local function enqueue(id, due, wait)
  if due <= now then
    ready[#ready + 1] = id
    has_ready = true
  else
    if due ~= last_due then last_due, last_due_text = due, string.format('%.0f', due) end
    local count = #delayed
    delayed[count + 1], delayed[count + 2] = last_due_text, id
    if due < earliest then earliest = due end
  end
  if wait and wait > 0 then
    watched[#watched + 1] = due + wait
    watched[#watched + 1] = id
    earliest = math.min(earliest, due + wait)
  end
end

-- Returns the code; the record that was stored; and for EXISTS the state that takes the id, and until when or 0.
local function put(id, options, due, nonce, bound, job_rest, extra_length)
  options = options % HAS_END
  local has_flow = options >= HAS_FLOW
  if has_flow then options = options - HAS_FLOW end
  local on_conflict, only_live, item, is_as_sent = options, false, nil, true
  if special and special.is_meant(options) then
    is_as_sent = false
    local code, shown
    code, shown, due, job_rest, extra_length, item = special.put(id, options, due, nonce, job_rest, extra_length)
    if code then return code, shown end
    on_conflict, only_live = special.conflict(options, item)
  end
  local rest, wait, tags, batch = complete(job_rest, extra_length, is_as_sent)
  local refused = batch and batch.refusal
  local record = write('<I6I6I6I4', now, due, nonce, 0) .. rest
  local room = (max_jobs > 0 or bound > 0) and room_within(bound) or math.huge
  local taken = has_taken and not only_live and call('ZSCORE', TAKEN, id)
  taken = taken and tonumber(taken) > now and tonumber(taken)
  if room > 0 and not taken and not refused and call('HSETNX', POOL, id, record) == 1 then
    if live then live = live + 1 end
    if has_tombstones then call('ZREM', CANCELLED, id) end
    if has_taken then call('ZREM', TAKEN, id) end
    if tags then index_tags({ id }, tags) end
    if has_flow then FLOWS.joined(read_extra(record)) end
    if batch then BATCHES.joined(batch.name) end
    enqueue(id, due, wait)
    if item then return special.begin_collection(id, record, item) end
    return CREATED, record
  end
  -- Of a replaced job it matters whether it is of a batch, or waited for; others are not read.
  local old = redis.call(on_conflict == REPLACE and 'HGET' or 'HEXISTS', POOL, id)
  if not old or old == 0 then
    if taken then return EXISTS, nil, 'finished', taken end
    return refused or FULL
  end
  if on_conflict == KEEP and not only_live then return KEPT end
  flush()
  local state, score = state_of(id)
  local is_over = state == 'dead' or state == 'finished'
  if not (only_live and is_over) then
    if on_conflict == KEEP then return KEPT end
    if on_conflict == REJECT or taken then
      return EXISTS, nil, state, is_over and math.max(score, taken or 0) or 0
    end
  end
  if state == 'reserved' then return HELD end
  local left = on_conflict == REPLACE and not is_over and BATCHES.of_raw(old) or nil
  local stays = batch and left == batch.ba
  if refused and not stays then return refused end
  if is_over and room <= 0 then return FULL end
  if not is_over then record = ENDS.in_place_of(old, record) end
  remove_job(id, state, score, now)
  redis.call('HSET', POOL, id, record)
  if tags then index_tags({ id }, tags) end
  if live and is_over then live = live + 1 end
  if has_flow then FLOWS.joined(read_extra(record)) end
  if left and not stays then pcall(BATCHES.ended, left, 'cancelled') end
  if batch and not stays then BATCHES.joined(batch.name) end
  enqueue(id, due, wait)
  if item then return special.begin_collection(id, record, item) end
  return only_live and is_over and CREATED or REPLACED, record
end

-- Store the jobs in ARGV[from..to] together: false, and nothing is done, unless all are new, no limit concerns them and
-- none has tags.
local function put_new(from, to, results)
  local ids, fields, dues, waits, count = {}, {}, {}, {}, 0
  for at = from, to, 2 do
    count = count + 1
    ids[count] = ARGV[at]
  end
  for start = 1, count, READ_AT_ONCE do
    local stored = call('HMGET', POOL, unpack(ids, start, math.min(start + READ_AT_ONCE - 1, count)))
    for index = 1, #stored do
      if stored[index] then return false end
    end
  end
  if has_taken then
    for _, until_ms in ipairs(call('ZMSCORE', TAKEN, unpack(ids))) do
      if until_ms then return false end
    end
  end
  for index = 1, count do
    local job = ARGV[from + 2 * index - 1]
    local options, kind, ms, bound, extra_length = read('<BBI8xxxxxxxxI4I4', job)
    if bound > 0 or options > REPLACE then return false end
    local due = kind == DELAY_GIVEN and now + ms or math.max(ms, now)
    if due ~= head_due then head_due, head = due, write('<I6I6', now, due) end
    local rest, wait, tags = string.sub(job, 23), nil, nil
    if extra_length > 0 or topic_defaults then
      rest, wait, tags = complete(rest, extra_length, true)
      if tags then return false end
    end
    fields[2 * index - 1] = ids[index]
    fields[2 * index] = head .. string.sub(job, 11, 16) .. NO_ATTEMPTS .. rest
    dues[index], waits[index] = due, wait
  end
  if set_fields(POOL, fields) < count then  -- an id occurs twice
    call('HDEL', POOL, unpack(ids))
    return false
  end
  if has_tombstones then call('ZREM', CANCELLED, unpack(ids)) end
  local done = #results
  for index = 1, count do
    local due = dues[index]
    enqueue(ids[index], due, waits[index])
    if noted then
      if due ~= noted.due then noted.due, noted.head, noted.rest = due, 'P' .. now .. ' ', ' ' .. due end
      noted[#noted + 1] = noted.head .. ids[index] .. noted.rest
    end
    results[done + index] = with_records and { CREATED, due > now and 'delayed' or 'ready', fields[2 * index], 0, '' }
      or CREATED
  end
  return true
end

-- What is returned for a job that was in the pool before, or whose put concerns a follow-up. `record` is the
-- follow-up's.
local function result_with_existing(id, code, record)
  if code >= FOLLOWS then
    if not with_records then return { code, 'delayed', '' } end
    if code == FOLLOW_UP_KEPT then
      record = special.shown(id, record)
      kept_room = kept_room - #record
    end
    return { code, 'delayed', kept_room >= 0 and record or '' }
  end
  flush()
  local state, score = state_of(id)
  if not with_records then return { code, state } end
  kept_room = kept_room - redis.call('HSTRLEN', POOL, id)
  if kept_room < 0 then return { code, state } end
  local raw = redis.call('HGET', POOL, id)
  local is_read, extra = pcall(read_extra, raw)
  if is_read and extra.y == 0 then
    raw = attached().with_items(id, raw)
    kept_room = kept_room - #raw
    if kept_room < 0 then return { code, state } end
  end
  return { code, state, raw, score or 0, redis.call('HGET', HOLDERS, id) or '' }
end

local function put_each(from, to)
  for at = from, to, 2 do
    local id, job = ARGV[at], ARGV[at + 1]
    local options, kind, ms, nonce, bound, extra_length, extra_at = read('<BBI8I8I4I4', job)
    local due = kind == DELAY_GIVEN and now + ms or math.max(ms, now)
    local code, record, state, until_ms =
      put(id, options, due, nonce, bound, string.sub(job, extra_at - 4), extra_length)
    if code == CREATED or code == REPLACED then put_now = put_now + 1 end
    if noted and record and code ~= FOLLOW_UP_KEPT then noted[#noted + 1] = noted.of_put(now, id, code, record) end
    local result = code
    if until_ms then
      result = { code, state, until_ms }
    elseif code >= FOLLOWS or code > 0 and not record then
      result = result_with_existing(id, code, record)
    elseif code > 0 and with_records then
      if special then due = read('<I6', record, 7) end  -- it may have been moved
      result = { code, due > now and 'delayed' or 'ready', record, 0, '' }
    end
    results[#results + 1] = result
  end
end

-- @call
read, write, call = struct.unpack, struct.pack, redis.call
now = now_ms()
kept_room = tonumber(ARGV[2])
with_records = kept_room > 0
-- One plain put of a job that is due later does not need the Ready list.
last = (#ARGV > 5 or may_become_ready(ARGV[5])) and last_position()
local settings, is_new = ensure_topic()
max_jobs = not ENDS.has_room and settings.j or 0
is_embedded = ARGV[3] == ''
local outdated = not is_embedded and outdated_terms(settings, ARGV[3])
if outdated then return outdated end
partitions = settings.n or 1
noted = settings.ev and { of_put = event_of_put }
topic_defaults = settings.po
if topic_defaults then ENDS.joined(topic_defaults) end
live, last_due, last_due_text, head_due, head, special = nil, nil, nil, nil, nil, nil
delayed, ready, watched, has_ready, has_flows = {}, {}, {}, false, false
earliest = is_new and now + FORGET_AFTER_MS or math.huge
results, put_now = {}, 0
-- A later call without a receipt refers to this job: it must not get the code of an earlier, cancelled one. Unlike
-- EXISTS, ZCARD fails for a key of the wrong type, before a job is stored.
has_tombstones, has_taken = call('EXISTS', CANCELLED, TAKEN) > 0, false
if has_tombstones then has_tombstones, has_taken = call('ZCARD', CANCELLED) > 0, call('ZCARD', TAKEN) > 0 end

local all_new = max_jobs == 0
for from = 4, #ARGV, 2 * TOGETHER do
  local to = math.min(from + 2 * TOGETHER - 1, #ARGV)
  all_new = all_new and to - from > 2 and put_new(from, to, results)
  if all_new then
    put_now = put_now + (to - from + 1) / 2
  else
    for at = from + 1, to, 2 do
      local options = string.byte(ARGV[at])
      if options >= HAS_END then ENDS.joined(OF_END) end
      options = options % HAS_END
      if options >= HAS_FLOW and not has_flows then
        flush()
        FLOWS.check_types()
        has_flows = true
      end
      if not special and options % HAS_FLOW > REPLACE then
        has_flows = true  -- an append may concern a job that has
        special = COLLAPSING_PUTS(now, { complete = complete, enqueue = enqueue, flush = flush })
      end
    end
    put_each(from, to)
  end
end
flush()
tally('put', put_now)
if noted then note_events(settings.ev, noted) end
if earliest < math.huge then schedule(earliest) end
if has_ready then wake_consumers() end
return { 'done', max_jobs, results, settings.du or 0 }
