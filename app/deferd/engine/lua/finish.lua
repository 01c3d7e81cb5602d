-- Finish jobs of one topic. A job with a retain time is kept as finished with its result; others are deleted. The id of
-- one with `unique_for` stays taken for that time. One with a follow-up is deleted in any case, and that takes its
-- place.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] two for each job: id | nonce u48 | attempt u32 (0: any) | result JSON
-- Returns a code for each: 0 finished, now or before by the same delivery, 1 not found, 2 held under another receipt,
--   3 cancelled, 4 to 7 not reserved (lib/delivery.lua); then two for some jobs that are finished now, one after the
--   other: for how many ms they were held | how many jobs
-- Bound: the jobs in ARGV, at most 1000.

-- What the functions below know of the call; all of it is set at its beginning.
local now, released, gone, kept, earliest, released_count, gone_count
local alike  -- for jobs of `released` in a row that have one ttr and lease end: place and record of the first, and that end
local last_end, last_ttr
local done  -- of each job that this call finishes: 'gone', or the state of what has its id then
local rare  -- what most calls do not have: the ids that stay taken, and the receipts of jobs with a follow-up by id
local tagged  -- the ids of those gone that have tags

local function begin_alike(raw, lease_end, ttr)
  last_end, last_ttr = lease_end, ttr
  alike[#alike + 1] = { first = released_count, raw = raw, lease_end = lease_end }
end

-- Finish a live delivery; its writes are collected and done at the end.
local function finish(id, raw, lease_end, extra_length, argument, result_at)
  released_count = released_count + 1
  released[released_count] = id
  if extra_length == 0 then  -- as for most jobs
    if lease_end ~= last_end or last_ttr then begin_alike(raw, lease_end, nil) end
    gone_count = gone_count + 1
    gone[gone_count] = id
    done[id] = 'gone'
    return
  end
  local extra = read_extra(raw)
  if lease_end ~= last_end or extra.t ~= last_ttr then begin_alike(raw, lease_end, extra.t) end
  if extra.i or extra.l then redis.call('ZREM', EXPIRY, id) end
  if ENDS.matters(extra) then ENDS.ended(id, read_record(raw), 'finished', string.sub(argument, result_at)) end
  if extra.o then
    gone_count = gone_count + 1
    gone[gone_count] = id
    rare = rare or { taken = {}, followed = {} }
    local nonce, attempts = read_nonce_and_attempts(raw)
    rare.followed[id] = string.format('%.0f %d', nonce, attempts + 1)
    done[id] = 'delayed'
    return
  end
  local unique, retain = extra.u, extra.r or 0
  if unique and unique > 0 then
    rare = rare or { taken = {}, followed = {} }
    table.insert(rare.taken, now + unique)
    table.insert(rare.taken, id)
    earliest = math.min(earliest, now + unique)
  end
  if retain == 0 then
    gone_count = gone_count + 1
    gone[gone_count] = id
    if extra.g then
      tagged = tagged or {}
      tagged[#tagged + 1] = id
    end
    done[id] = 'gone'
    return
  end
  done[id] = 'finished'
  local record, result = read_record(raw), string.sub(argument, result_at)
  record.attempts = record.attempts + 1
  record.extra.f, record.extra.fb = now, redis.call('HGET', HOLDERS, id) or nil
  if result ~= '' then
    record.extra.n = #result
    record.rest = result .. record.rest
  end
  kept[#kept + 1] = { id, write_record(record), now + retain }
  earliest = math.min(earliest, now + retain)
end

-- A finish that is repeated because its response was lost succeeds, also when the job's follow-up has taken its place.
local function was_finished_by(id, raw, nonce, attempt)
  local finished_nonce, attempts = read_nonce_and_attempts(raw)
  if finished_nonce == nonce and attempts == attempt then return redis.call('ZSCORE', FINISHED, id) end
  local is_read, extra = pcall(read_extra, raw)
  return is_read and attempt > 0 and type(extra) == 'table' and extra.p == string.format('%.0f %d', nonce, attempt)
end

-- Append to the reply for how long the released jobs were held; `entries` is what REQUESTS had for them, empty for nothing.
local function append_run_times(reply, entries)
  local place, last_since = #reply, nil
  local function add(since, jobs)
    if since == last_since then
      reply[place] = reply[place] + jobs
    else
      reply[place + 1], reply[place + 2] = math.max(now - since, 0), jobs
      place, last_since = place + 2, since
    end
  end
  for number, some in ipairs(alike) do
    local behind = number < #alike and alike[number + 1].first or released_count + 1
    if #entries == 0 then
      add(HAND_OUT.since(false, some.raw, some.lease_end), behind - some.first)
    else
      local last_entry, since  -- most jobs of a call were handed out together
      for at = some.first, behind - 1 do
        if entries[at] ~= last_entry then
          last_entry, since = entries[at], HAND_OUT.since(entries[at], some.raw, some.lease_end)
        end
        add(since, 1)
      end
    end
  end
end

-- @call
local read = struct.unpack
now = now_ms()  -- before any write: without the permission for TIME nothing may change
local ids, count = {}, (#ARGV - 1) / 2
for index = 1, count do
  ids[index] = ARGV[2 * index]
end
local raws = redis.call('HMGET', POOL, unpack(ids))
local lease_ends = redis.call('ZMSCORE', RESERVED, unpack(ids))

released, gone, kept, earliest, released_count, gone_count = {}, {}, {}, math.huge, 0, 0
alike, last_end, last_ttr, done, rare, tagged = {}, nil, nil, {}, nil, nil
local most_events = events_to_keep()
local noted, head_of_event = most_events and {}, most_events and 'F' .. now .. ' '

local codes = {}
for index = 1, count do
  local id, raw, argument = ids[index], raws[index], ARGV[2 * index + 1]
  local nonce, attempt, result_at = read('<I6I4', argument)
  local code = LIVE
  if not raw or done[id] == 'gone' then
    code = code_for_missing(id, nonce, attempt, now)
  elseif done[id] then
    code = attempt ~= 0 and receipt_matches(raw, nonce, attempt) and LIVE or NOT_HELD[done[id]]
  elseif #raw < HEADER_BYTES then  -- a damaged store: the other jobs are finished all the same
    code = code_for_stale(id)
  else
    local live_nonce, ended, extra_length = read('<I6I4I4', raw, 13)
    local has_receipt = attempt == 0 or live_nonce == nonce and ended + 1 == attempt
    if has_receipt and lease_ends[index] then
      finish(id, raw, lease_ends[index], extra_length, argument, result_at)
      if noted then
        noted[#noted + 1] = head_of_event .. id .. ' ' .. ended + 1 .. (done[id] == 'finished' and ' 1' or '')
      end
    else
      code = was_finished_by(id, raw, nonce, attempt) and LIVE or code_for_stale(id)
    end
  end
  codes[index] = code
end

if #released > 0 then
  append_run_times(codes, forget_holders(released, true))
  redis.call('ZREM', RESERVED, unpack(released))
  tally('finished', #released)
  if noted then note_events(most_events, noted) end
end
if #gone > 0 then redis.call('HDEL', POOL, unpack(gone)) end
if tagged then index_tags(tagged) end
for _, job in ipairs(kept) do
  redis.call('HSET', POOL, job[1], job[2])
  redis.call('ZADD', FINISHED, job[3], job[1])
end
if rare then
  for id, receipt in pairs(rare.followed) do
    attached().start_follow_up(id, now, nil, receipt)
  end
  if #rare.taken > 0 then redis.call('ZADD', TAKEN, unpack(rare.taken)) end
end
if earliest < math.huge then schedule(earliest) end
return codes
