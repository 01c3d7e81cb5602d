-- Find the first of some puts into one topic that would be refused. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] terms as in ARGV[3] of put.lua, with the durability that the puts reach if some name none
-- ARGV[3] id of a reserved job of the topic that is finished before the puts, '' for none
-- ARGV[4..] two for each job, as in put.lua
-- Returns { 'done' } when all would be stored, kept or replaced;
--   { 'refused', number of the job in ARGV, from 1 | what put.lua returns for it: a code below 0, or
--     { -1, state, until when } | the topic's max_jobs or 0 }; or
--   { 'terms', ... } as put.lua, but a default durability is satisfied by each higher one too: several topics share a call
-- Bound: the jobs in ARGV, at most 10.
local REJECT, KEEP, APPEND, ONLY_LIVE, AFTER, DELAY_GIVEN = 0, 1, 3, 4, 8, 0
local EXISTS, HELD, FULL, TOO_LARGE = -1, -2, -3, -4
local MOST_ITEMS = 10000
local here, now, finishing = attached(), now_ms(), ARGV[3]
local settings = stored_settings()
local outdated = outdated_terms(settings, ARGV[2], true)
if outdated then return outdated end

local max_jobs, partitions = settings.j or 0, settings.n or 1
local live = live_jobs()

-- The body of a job as a collection: how many items it has, how many bytes those are, and whether more can be added.
local function collection_of(id, raw)
  local record = read_record(raw)
  local extra = record.extra
  if extra.y == 0 then
    local bytes = tonumber(redis.call('HGET', here.ITEMS, id) or 0)
    return { count = redis.call('LLEN', here.items_key(id)), bytes = bytes, is_open = true }
  end
  local was_handed_out = record.attempts > 0 or extra.s  -- as in lib/collapsing.lua
  local is_open = not (was_handed_out or extra.o) and (extra.y or 0) == 0
  return { count = 1, bytes = #record.rest, is_open = is_open }
end

local function new_collection(body) return { count = 1, bytes = #body, is_open = true } end

-- What has an id, as the finish and the puts before leave it: the state of the job, nil for none, and when that ends if
-- it is over; its body, and that of its follow-up; and until when the id is taken.
local found = {}
local function find(id)
  if found[id] then return found[id] end
  local job, raw, score = {}, redis.call('HGET', POOL, id), nil
  found[id] = job
  local taken = tonumber(redis.call('ZSCORE', TAKEN, id) or 0)
  if taken > now then job.taken = taken end
  if not raw then return job end
  job.state, score = state_of(id)
  job.until_ms = score or 0
  local follow_up = here.follow_up_of(id)
  if follow_up then job.follow_up = collection_of(id, follow_up) end
  job.batch = BATCHES.of_raw(raw)
  job.body = collection_of(id, raw)
  if id ~= finishing then return job end
  local extra = read_extra(raw)
  if extra.o and follow_up then
    job.state, job.body, job.follow_up, job.batch = 'delayed', job.follow_up, nil, BATCHES.of_raw(follow_up)
    return job
  end
  live = live - 1
  if (extra.u or 0) > 0 then job.taken = now + extra.u end
  job.state = (extra.r or 0) > 0 and 'finished' or nil
  job.until_ms = now + (extra.r or 0)
  return job
end
if finishing ~= '' then find(finishing) end

-- Add an item to a collection; returns whether that is too large then.
local function is_too_large(collection, item, most_bytes)
  local count, bytes = collection.count, collection.bytes + #item
  collection.count, collection.bytes = count + 1, bytes
  return count >= MOST_ITEMS or bytes + count + 2 > most_bytes
end

-- What put.lua would return for a put that it refuses, nil for others.
local function refusal(id, options, due, bound, extra, body)
  local job, on_conflict = find(id), options % ONLY_LIVE
  local only_live = options % (2 * ONLY_LIVE) >= ONLY_LIVE
  local waits = job.state == 'reserved' and options % (2 * AFTER) >= AFTER
  if on_conflict == APPEND then
    if job.state == 'reserved' and not waits then return HELD end
    if job.state == 'delayed' or job.state == 'ready' then
      if job.body.is_open and not job.follow_up then
        if is_too_large(job.body, body, extra.z) then return TOO_LARGE end
        if due <= now or extra.y and job.body.count >= extra.y then job.state = 'ready' end
        return nil
      end
      waits = true
    end
    if waits and job.follow_up then return is_too_large(job.follow_up, body, extra.z) and TOO_LARGE or nil end
    if #body + 2 > extra.z then return TOO_LARGE end
    on_conflict = REJECT
  end
  if waits then
    if not (job.follow_up and on_conflict == KEEP) then job.follow_up = new_collection(body) end
    return nil
  end
  local taken = not only_live and job.taken or nil
  local is_over = job.state == 'dead' or job.state == 'finished'
  if job.state and not (only_live and is_over) then
    if on_conflict == KEEP then return nil end
    if on_conflict == REJECT or taken then
      return { EXISTS, job.state, is_over and math.max(job.until_ms, taken or 0) or 0 }
    end
  elseif not job.state and taken then
    return { EXISTS, 'finished', taken }
  end
  if job.state == 'reserved' then return HELD end
  local batch = extra.ba and BATCHES.to_join(extra.ba, now) or {}
  local stays = batch.ba and batch.ba == job.batch and job.state and not is_over
  if batch.refusal and not stays then return batch.refusal end
  if is_over or not job.state then
    if max_jobs > 0 and live >= math.ceil(max_jobs / partitions) then return FULL end
    if bound > 0 and live >= math.ceil(bound / partitions) then return FULL end
    live = live + 1
  end
  local is_due = due <= now or extra.y == 1
  found[id] = { state = is_due and 'ready' or 'delayed', body = new_collection(body), batch = batch.ba }
  return nil
end

for at = 4, #ARGV, 2 do
  local job = ARGV[at + 1]
  local options, kind, ms, _, bound, length, extra_at = struct.unpack('<BBI8I8I4I4', job)
  local extra = length > 0 and cjson.decode(string.sub(job, extra_at, extra_at + length - 1)) or {}
  local due = kind == DELAY_GIVEN and now + ms or ms
  local refused = refusal(ARGV[at], options, due, bound, extra, string.sub(job, extra_at + length))
  if refused then return { 'refused', (at - 2) / 2, refused, max_jobs } end
end
return { 'done' }
