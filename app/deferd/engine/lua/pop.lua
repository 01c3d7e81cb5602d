-- Hand out ready jobs of one topic, in the order of the requests, each under a lease.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] how long a dead job is kept, ms
-- ARGV[3..] four for each request: count, negative for the pusher of the topic | ttr ms, 0 for the job's own | consumer or '' | request id or ''
-- Returns { now ms, 1 when the topic may have more ready jobs, else 0, jobs dropped as expired,
--   for each request { how often it was repeated (0: first deliveries), or -1 when it must be sent again,
--     id, record, lease end ms, id, ... }, jobs whose deadline has passed }
--   or -1 when the jobs of the topic are pushed, and the caller is not its pusher: nothing is done
-- A repeated request id gets those of its earlier deliveries that are still live; without any it counts as a new
-- request. It is remembered while one of them lives, for an hour at most. "*" precedes the id of a pop by patterns.
-- A job whose ttl or deadline has passed is never handed out: it becomes dead. Items that were collected for a job
-- become its body when it is first handed out.
-- Fewer jobs than asked for are handed out when their records would exceed 1 MiB, at least one: a larger reply delays
-- every other caller of the service. Once the repeated requests of a call have received 1 MiB, further ones get -1:
-- else one request id, repeated a hundred times in a call, would make a reply a hundred times as large.
-- Where jobs have groups or priorities, or limits, lib/flows.lua says which one is next, and whether there is room for it. A
-- pop that finds only jobs without room returns as from an empty list, and is woken when there is room. In
-- FLOWS.MOST_TURNS turns a call may find fewer jobs than asked for, or none.
-- Bound: the jobs asked for (the caller asks for at most 1000), 1 MiB or one job, the same for repeated requests and
-- what one of them received, and at most 1000 that are not handed out: expired ones, and ids of a damaged store. Each
-- time that records do not fit, at most READ_AT_ONCE are read in vain.
local FIRST_TIME, RESEND = 0, -1
local IS_PUSHED = -1
local MOST_SKIPPED = 1000
local REMEMBERED_MS = 3600000
local MOST_BYTES = 1024 * 1024
local MOST_IN_CHUNK = 500
local READ_AT_ONCE = 16

-- What the functions below know of the call; all of it is set at its beginning.
local read, now, dead_retention
local noted  -- events
local replayed_bytes, skipped, expired, overdue
local is_drained  -- whether the Ready list is known to be empty, but for what limits hold back
local settings
local has_flows, is_limited
local found  -- in a topic with flows: what FLOWS.take needs of the jobs that were read last
local marks  -- by place in `taken`: what REQUESTS is to have of its group
local taken, records, ttrs, latest_ends, next_taken, leases, earliest
local holders, requested  -- pairs for HOLDERS and REQUESTS, of all requests of this call

-- The live deliveries of an earlier response to this request. The caller that repeats the request becomes their holder.
local function replay(request)
  if replayed_bytes >= MOST_BYTES and redis.call('EXISTS', request.key) == 1 then return { RESEND } end
  local remembered = redis.call('HGETALL', request.key)
  request.is_remembered = #remembered > 0
  local live, last_lease_end, repeats_now = {}, 0, 0
  for at = 1, #remembered, 2 do
    local id, delivery = remembered[at], remembered[at + 1]
    local place, nonce, attempt, repeats = string.match(delivery, '^(%d+) (%d+) (%d+) (%d+)$')
    local raw = redis.call('HGET', POOL, id)
    local lease_end = redis.call('ZSCORE', RESERVED, id)
    if raw and lease_end and receipt_matches(raw, tonumber(nonce), tonumber(attempt)) then
      live[#live + 1] = { place = tonumber(place), id = id, raw = raw, lease_end = tonumber(lease_end) }
      last_lease_end = math.max(last_lease_end, tonumber(lease_end))
      if request.consumer == '' then
        redis.call('HDEL', HOLDERS, id)
      else
        redis.call('HSET', HOLDERS, id, request.consumer)
      end
      repeats_now = repeats + 1
      redis.call('HSET', request.key, id, string.format('%s %s %s %d', place, nonce, attempt, repeats_now))
    end
  end
  if #live == 0 then return nil end
  local kept_ms = math.min(math.max(last_lease_end - now, 1000), REMEMBERED_MS)
  redis.call('PEXPIRE', request.key, kept_ms)
  if string.byte(request.id) == ASTERISK then remember_topic(request.id, kept_ms) end
  table.sort(live, function(one, other) return one.place < other.place end)
  local reply = { repeats_now }
  for _, delivery in ipairs(live) do
    reply[#reply + 1] = delivery.id
    reply[#reply + 1] = delivery.raw
    reply[#reply + 1] = delivery.lease_end
    replayed_bytes = replayed_bytes + #delivery.raw
  end
  return reply
end

-- The job's own ttr, when its lease ends at the latest, nil for any time, and whether its items are collected in a
-- list; raises an error for a record that cannot be read.
local function read_terms(raw)
  local extra, latest = read_extra(raw), nil
  if extra.i or extra.l then
    local _, due = struct.unpack('<I6I6', raw)
    latest = latest_lease_end(due, extra, now)
  end
  return (extra.t or DEFAULT_TTR_MS) + 0, latest, extra.y == 0
end

-- The first of some ready jobs, so many that their records fit into `bytes`: their ids, and their records (false
-- for an id without one). Up to READ_AT_ONCE records of the size of those before are read in one step; what of them
-- does not fit stays in the list. The first is among them in any case with `at_least_one`.
local function first_fitting(ids, bytes, at_least_one)
  local raws, count, largest, fits = {}, 0, 0, true
  if at_least_one and #ids > 0 then
    count, raws[1] = 1, redis.call('HGET', POOL, ids[1])
    largest = raws[1] and #raws[1] or 0
    bytes = bytes - largest
  end
  while fits and count < #ids do
    local step = largest > 0 and math.floor(bytes / largest) or 1
    if step <= 1 then
      step, fits = 1, redis.call('HSTRLEN', POOL, ids[count + 1]) <= bytes
    end
    step = math.min(step, READ_AT_ONCE, #ids - count)
    local some = fits and redis.call('HMGET', POOL, unpack(ids, count + 1, count + step)) or {}
    for index = 1, #some do
      local size = some[index] and #some[index] or 0
      if size > bytes then
        fits = false
        break
      end
      count = count + 1
      raws[count] = some[index]
      bytes = bytes - size
      if size > largest then largest = size end
    end
  end
  for beyond = #ids, count + 1, -1 do ids[beyond] = nil end
  return ids, raws
end

-- Take jobs of the flow that has its turn off the Ready list.
local function take_of_flows(most, bytes, at_least_one)
  local next_ids, more = FLOWS.next(settings, most, now)
  if not next_ids then
    is_drained, is_limited = more ~= 'more', more == 'limited'
    return {}, {}
  end
  found = more
  local ids, raws = first_fitting(next_ids, bytes, at_least_one)
  if #ids > 0 then redis.call('ZREM', READY, unpack(ids)) end
  return ids, raws
end

-- Take the first jobs off the Ready list, see above.
local function take_ids(most, bytes, at_least_one)
  if has_flows then return take_of_flows(most, bytes, at_least_one) end
  if most == 1 and at_least_one then
    local first = redis.call('ZPOPMIN', READY)
    local id = first[1]
    if id and tonumber(first[2]) < FLOWS.PLAIN_FROM then  -- whose turn is it?
      redis.call('ZADD', READY, first[2], id)
      has_flows = true
      FLOWS.begin_turns()
      return take_of_flows(most, bytes, at_least_one)
    end
    is_drained = not id
    return { id }, { id and redis.call('HGET', POOL, id) }
  end
  local first_ids = redis.call('ZRANGE', READY, 0, most - 1)
  local looked_at = #first_ids
  local ids, raws = first_fitting(first_ids, bytes, at_least_one)
  is_drained = #ids == looked_at and looked_at < most
  if #ids > 0 then redis.call('ZREMRANGEBYRANK', READY, 0, #ids - 1) end
  return ids, raws
end

-- When each of some jobs becomes dead, false for those that have no such time.
local function expiries_of(ids)
  if #ids > FEW_IDS and redis.call('EXISTS', EXPIRY) == 0 then return {} end
  return redis.call('ZMSCORE', EXPIRY, unpack(ids))
end

-- Note for FLOWS which jobs, from this place in `taken` on, are handed out, and what REQUESTS is to have of their group.
local function note_flows(taken, from)
  FLOWS.take(settings, { unpack(taken, from) }, found, now)
  if found.flow == FLOWS.PLAIN then return end
  for place = from, #taken do marks[place] = '=' .. found.group end
end

-- Remove the first `wanted` jobs from the Ready list. Returns their ids, records, own ttrs, and latest lease ends, nil
-- for none.
-- An id without a readable record is removed from the list and skipped, so that it does not block the others (a
-- consistency check finds it).
local function take(wanted)
  local taken, records, ttrs, count, bytes, is_full = {}, {}, {}, 0, 0, false
  if wanted > 1 or settings.li then has_flows = redis.call('EXISTS', topic_key('turns')) == 1 end
  if has_flows and wanted > 1 then FLOWS.check_types() end  -- one job is not taken off the list before all is read
  if has_flows then FLOWS.begin_turns() end
  local latest_ends  -- of the few jobs that have one
  while count < wanted and skipped < MOST_SKIPPED and not is_full and not is_drained do
    local ids, raws = take_ids(math.min(wanted - count, MOST_IN_CHUNK), MOST_BYTES - bytes, bytes == 0)
    if #ids == 0 then break end
    local expiry, from = nil, count + 1
    for index = 1, #ids do
      local id, raw = ids[index], raws[index]
      if raw and string.sub(raw, 23, 26) == NO_EXTRA then  -- as most jobs: it has neither a ttl nor a deadline
        count = count + 1
        taken[count], records[count], ttrs[count] = id, raw, DEFAULT_TTR_MS
        bytes = bytes + #raw
      else
        expiry = expiry or expiries_of(ids)
        local is_read, own_ttr, latest, is_open = false, nil, nil, false
        if raw then is_read, own_ttr, latest, is_open = pcall(read_terms, raw) end
        local reason  -- why it is dead; an entry may be left over from an earlier job with its id
        if is_read and expiry[index] and tonumber(expiry[index]) <= now then
          local ends_at, why = end_of_waiting(read_record(raw))
          reason = ends_at and ends_at <= now and why
        end
        if not is_read then
          skipped = skipped + 1
        elseif reason then
          bury_job(id, read_record(raw), reason, now, dead_retention)
          if reason == 'deadline' then overdue = overdue + 1 else expired = expired + 1 end
          skipped = skipped + 1
        elseif is_open and count > 0
          and bytes + (redis.call('HGET', attached().ITEMS, id) or 0) > MOST_BYTES then
          for back = #ids, index, -1 do prepend_ready(ids[back]) end
          is_full, is_drained = true, false
          break
        else
          if is_open then  -- from now on nothing is added
            raw = attached().with_items(id, raw)
            attached().drop_items({ id })
            redis.call('HSET', POOL, id, raw)
          end
          if latest then
            redis.call('ZADD', EXPIRY, latest, id)
          elseif expiry[index] then
            redis.call('ZREM', EXPIRY, id)
          end
          count = count + 1
          if latest then
            latest_ends = latest_ends or {}
            latest_ends[count] = latest
          end
          taken[count], records[count], ttrs[count] = id, raw, own_ttr
          bytes = bytes + #raw
        end
      end
    end
    if has_flows then note_flows(taken, from) end
  end
  return taken, records, ttrs, latest_ends
end

local function remember(request, deliveries, longest)
  if request.is_remembered then redis.call('DEL', request.key) end
  set_fields(request.key, deliveries)
  local kept_ms = math.min(longest, REMEMBERED_MS)
  redis.call('PEXPIRE', request.key, kept_ms)
  if string.byte(request.id) == ASTERISK then remember_topic(request.id, kept_ms) end
end

local function serve(request)
  local reply, longest, deliveries, count, at = { FIRST_TIME }, 0, {}, 0, 1
  local consumer, request_id = request.consumer ~= '' and request.consumer, request.id
  local format = request_id and '%d ' .. WHOLE .. ' %d 0'
  local head_of_event = noted and 'O' .. now .. ' '
  local end_of_event = noted and ' ' .. request.consumer
  local entry  -- for REQUESTS, of deliveries of which it is noted when they were handed out
  local last_end, last_end_text  -- most leases of a reply end at the same instant
  while count < request.count and taken[next_taken] do
    local id, raw = taken[next_taken], records[next_taken]
    local ttr = request.ttr == 0 and ttrs[next_taken] or request.ttr
    local lease_end = now + ttr
    local latest = latest_ends and latest_ends[next_taken]
    if latest and latest < lease_end then lease_end = latest end
    if lease_end ~= last_end then last_end, last_end_text = lease_end, string.format('%.0f', lease_end) end
    leases[2 * next_taken - 1], leases[2 * next_taken] = last_end_text, id
    local is_noted = lease_end - now ~= ttrs[next_taken]  -- when it was handed out: the lease does not tell it
    local mark = marks[next_taken] or settings.li and '!'
    next_taken = next_taken + 1
    if lease_end < earliest then earliest = lease_end end
    if ttr > longest then longest = ttr end
    reply[at + 1], reply[at + 2], reply[at + 3] = id, raw, lease_end
    at, count = at + 3, count + 1
    if consumer then holders[#holders + 1], holders[#holders + 2] = id, consumer end
    if noted then
      local attempt = read('<I4', raw, 19) + 1
      noted[#noted + 1] = head_of_event .. id .. ' ' .. attempt .. ' ' .. last_end_text .. end_of_event
    end
    if request_id then
      local nonce, attempts = read('<I6I4', raw, 13)
      local place = 2 * count - 1
      deliveries[place], deliveries[place + 1] = id, string.format(format, place, nonce, attempts + 1)
    end
    if mark then
      requested[#requested + 1], requested[#requested + 2] = id, HAND_OUT.entry(request_id, now, mark)
    elseif request_id or is_noted then
      entry = entry or is_noted and HAND_OUT.entry(request_id, now)
      requested[#requested + 1], requested[#requested + 2] = id, is_noted and entry or request_id
    end
  end
  if count > 0 and request_id then remember(request, deliveries, longest) end
  return reply
end

-- @call
read = struct.unpack
now = now_ms()
dead_retention = tonumber(ARGV[2])
settings = stored_settings()
if settings.pu and tonumber(ARGV[3]) >= 0 then return IS_PUSHED end
local paused = settings.p == 1
noted = settings.ev and {}
replayed_bytes, skipped, expired, overdue, is_drained = 0, 0, 0, 0, false
has_flows, is_limited, found, marks = false, false, nil, {}

local requests, wanted = {}, 0
for at = 3, #ARGV, 4 do
  local request = { count = math.abs(ARGV[at]), ttr = tonumber(ARGV[at + 1]), consumer = ARGV[at + 2] }
  if ARGV[at + 3] ~= '' then
    request.id = ARGV[at + 3]
    request.key = request_key(request.id)
  end
  requests[#requests + 1] = request
end

-- Repeated requests take no jobs from the list. A request repeated within this call is handled after its first
-- occurrence has taken its jobs.
local first_with_key = {}
for _, request in ipairs(requests) do
  if request.key and first_with_key[request.key] then
    request.repeated = true
  else
    if request.key then
      first_with_key[request.key] = true
      request.reply = replay(request)
    end
    if not request.reply and not paused then wanted = wanted + request.count end
  end
end

taken, records, ttrs, latest_ends, next_taken, leases, earliest = {}, {}, {}, nil, 1, {}, math.huge
local asked_for, room_at, window = wanted, nil, nil
if wanted > 0 and settings.li then wanted, window, room_at = FLOWS.room(settings, wanted, now) end
if wanted > 0 then taken, records, ttrs, latest_ends = take(wanted) end
if window and #taken > 0 then RATE.note(topic_key('rate/'), window, settings.li.r, #taken, now) end
if #taken == wanted and wanted < asked_for then is_limited, is_drained = true, true end
holders, requested = {}, {}

local replies = {}
for index, request in ipairs(requests) do
  if not request.repeated then
    replies[index] = request.reply or serve(request)
  end
end
if #holders > 0 then set_fields(HOLDERS, holders) end
if #requested > 0 then set_fields(REQUESTS, requested) end
if #leases > 0 then
  redis.call('ZADD', RESERVED, unpack(leases))
  schedule(earliest)
end
if noted then note_events(settings.ev, noted) end
for index, request in ipairs(requests) do
  if request.repeated then replies[index] = replay(request) or { FIRST_TIME } end
end
local more = not paused and not is_drained and redis.call('EXISTS', READY) or 0
if is_limited and redis.call('EXISTS', READY) == 1 then
  if not room_at and window and window.total >= settings.li.r.c then room_at = RATE.room_at(window, settings.li.r) end
  FLOWS.wait(settings, room_at, now)
end
return { now, more, expired, replies, overdue }
