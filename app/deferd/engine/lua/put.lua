-- Put jobs into one topic. Each is stored completely, or not at all, with a code for the reason.
-- @include clock topic record transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- ARGV[2] 0: return only the codes. Otherwise also the jobs as they are stored; of those that existed already only as
--   many as have this number of bytes together, and for the others the code alone
-- ARGV[3] the default durability of the topic that this call satisfies, a level of store/durability_levels.py; -1: any.
--   If the topic has another default above 0, nothing is stored and no result is returned
-- ARGV[4..] two for each job: id | job, which consists of
--   on conflict u8 (0 reject, 1 keep, 2 replace) | 0 delay, 1 instant u8 | that delay or instant, ms u64 | nonce u64 |
--   the number of live jobs in the topic from which on the put is refused, 0: only the topic's limit, u32 |
--   the rest of a record as in lib/record.lua: length of extra u32 | extra | body
-- Returns { now ms, the topic's max_jobs or 0, { code or { code, state, record, lease end ms, consumer } ... },
--   the topic's default durability }
--   1 created, 2 kept, 3 replaced, -1 the id is taken, -2 a consumer holds the job, -3 the topic is full
-- Bound: the caller sends at most 1000 jobs.
local REJECT, KEEP, DELAY_GIVEN = 0, 1, 0
local CREATED, KEPT, REPLACED, EXISTS, HELD, FULL = 1, 2, 3, -1, -2, -3
local read, write, call = struct.unpack, struct.pack, redis.call
local now = now_ms()
local kept_room = tonumber(ARGV[2])
local with_records = kept_room > 0
local last = last_position()
local settings, is_new = ensure_topic()
local max_jobs = settings.j or 0
local durability, satisfied = settings.l or 0, tonumber(ARGV[3])
if durability > 0 and satisfied >= 0 and durability ~= satisfied then return { now, max_jobs, {}, durability } end
local live  -- the number of live jobs, counted when first needed

-- How many more jobs the topic may hold, when the put itself allows `bound` live jobs (0: any number).
local function room_within(bound)
  local most = max_jobs > 0 and max_jobs or math.huge
  if bound > 0 then most = math.min(most, bound) end
  if most == math.huge then return most end
  live = live or redis.call('HLEN', POOL) - redis.call('ZCARD', DEAD) - redis.call('ZCARD', FINISHED)
  return most - live
end

local topic_defaults = {}
if next(settings) then
  for _, key in ipairs({ 't', 'm', 'b', 'x', 'r', 'q', 'i' }) do
    topic_defaults[key] = settings[key]
  end
  topic_defaults.l = settings.d  -- in settings `l` is the durability
end
local has_defaults = next(topic_defaults) ~= nil

-- The rest of a job's record with the topic's defaults filled in, and how long it may wait after it is due.
local function complete(rest, length)
  if length == 0 and not has_defaults then return rest, nil end
  local policy = length == 0 and {} or cjson.decode(string.sub(rest, 5, 4 + length))
  if has_defaults then
    for key, value in pairs(topic_defaults) do
      if policy[key] == nil then policy[key] = value end
    end
    local extra = cjson.encode(policy)
    rest = write('<I4', #extra) .. extra .. string.sub(rest, 5 + length)
  end
  local wait, deadline = policy.x, policy.l
  if deadline and deadline > 0 and not (wait and wait > 0 and wait < deadline) then wait = deadline end
  return rest, wait
end

local delayed, ready, watched = {}, {}, {}
local earliest = is_new and now + FORGET_AFTER_MS or math.huge

local function flush()
  if #ready > 0 then last = append_ready(ready, last) end
  if #delayed > 0 then redis.call('ZADD', DELAY, unpack(delayed)) end
  if #watched > 0 then redis.call('ZADD', EXPIRY, unpack(watched)) end
  delayed, ready, watched = {}, {}, {}
end

local has_ready = false
local last_due, last_due_text  -- most jobs of a batch are due at the same instant

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

-- A later call without a receipt refers to this job: it must not get the code of an earlier, cancelled one.
local has_tombstones = redis.call('EXISTS', CANCELLED) == 1

local function put(id, on_conflict, due, nonce, bound, job_rest, extra_length)
  local rest, wait = complete(job_rest, extra_length)
  local record = write('<I6I6I6I4', now, due, nonce, 0) .. rest
  local room = (max_jobs > 0 or bound > 0) and room_within(bound) or math.huge
  if room > 0 and call('HSETNX', POOL, id, record) == 1 then
    if live then live = live + 1 end
    if has_tombstones then call('ZREM', CANCELLED, id) end
    enqueue(id, due, wait)
    return CREATED, record
  end
  if redis.call('HEXISTS', POOL, id) == 0 then return FULL end
  if on_conflict == REJECT then return EXISTS end
  if on_conflict == KEEP then return KEPT end
  flush()
  local state, score = state_of(id)
  if state == 'reserved' then return HELD end
  local was_live = state == 'delayed' or state == 'ready'
  if not was_live and room <= 0 then return FULL end
  remove_job(id, state, score, now)
  redis.call('HSET', POOL, id, record)
  if live and not was_live then live = live + 1 end
  enqueue(id, due, wait)
  return REPLACED, record
end

local results, put_now = {}, 0
for at = 4, #ARGV, 2 do
  local job = ARGV[at + 1]
  local on_conflict, kind, ms, nonce, bound, extra_length, extra_at = read('<BBI8I8I4I4', job)
  local due = kind == DELAY_GIVEN and now + ms or math.max(ms, now)
  local code, record = put(ARGV[at], on_conflict, due, nonce, bound, string.sub(job, extra_at - 4), extra_length)
  if code == CREATED or code == REPLACED then put_now = put_now + 1 end
  if not with_records or code < 0 then
    results[#results + 1] = code
  elseif record then
    results[#results + 1] = { code, due > now and 'delayed' or 'ready', record, 0, '' }
  else
    local id = ARGV[at]
    kept_room = kept_room - redis.call('HSTRLEN', POOL, id)
    if kept_room < 0 then
      results[#results + 1] = code
    else
      flush()
      local state, score = state_of(id)
      results[#results + 1] = {
        code, state, redis.call('HGET', POOL, id), score or 0, redis.call('HGET', HOLDERS, id) or ''
      }
    end
  end
end
flush()
tally('put', put_now)
if earliest < math.huge then schedule(earliest) end
if has_ready then wake_consumers() end
return { now, max_jobs, results, durability }
