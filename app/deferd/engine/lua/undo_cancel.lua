-- Put jobs back that a call on many jobs has cancelled and kept, those of one step, as they were: due when they were due, or
-- behind all ready ones if that is past. An id that was put again meanwhile, or is taken, stays as it is. The call that
-- has cancelled them leaves them alone from now on, also when it is repeated. A run of a schedule is back only while it is
-- the next one: what has ended it in between, such as a pause, would have ended it if it had been there.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] name of the call | ARGV[3] number of the step, see lib/undo.lua | ARGV[4] in which generation the
--   shelf was asked for the ids | ARGV[5] how many partitions the topic has, as the caller knows | ARGV[6..] those of the ids
--   that belong to another partition by now, where they may have been put again: they are not put back
-- Returns { number of jobs that are back, number of those that are not }: both 0 when they were put back already, or it is
--   too late. None is back when the topic has another number of partitions now. None is back, and all stay kept, when it
--   has no room for all of them, or ARGV[5] is outdated.
--   Or { -1, the first generation in which the shelf must have been asked }, and nothing is done
-- Bound: the jobs of a step, at most 60, with a megabyte of records, or one.
local name, step, generation = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local NO_SHELF = 9007199254740991
local key, now = UNDO.key(name, step), now_ms()
local kept = redis.call('LRANGE', key, 0, -1)
if #kept == 0 then return { 0, 0 } end
local first = generation == NO_SHELF and 0 or SHELF.first_generation()
if generation < first then return { -1, first } end
local ids, raws, runs = {}, {}, {}
for id in string.gmatch(kept[2], '%S+') do
  ids[#ids + 1] = id
  raws[#raws + 1] = kept[#ids + 3]
end
for at = 4 + #ids, #kept, 2 do runs[kept[at]] = kept[at + 1] end

-- The key of the schedule of a run, nil unless that is still its next run.
local function schedule_of(id)
  local key = of_shard('schedule/') .. string.match(runs[id], '^%S*')
  local fields = redis.pcall('HMGET', key, 'next_id', 'active')  -- an error, when another program has damaged it, has none
  return fields[1] == id and fields[2] == '1' and key or nil
end

-- These fail for a key of the wrong type, before a job is stored.
local last = last_position()
FLOWS.check_types()
redis.call('ZCARD', DELAY)
redis.call('ZCARD', EXPIRY)
redis.call('ZCARD', CANCELLED)
redis.call('HLEN', attached().RUNS)
local taken = redis.call('ZMSCORE', TAKEN, unpack(ids))
local settings = stored_settings()
local count = settings.n or 1
if count ~= tonumber(ARGV[5]) then return { 0, #ids } end
local is_same, elsewhere = count == tonumber(kept[1]), {}
for at = 6, #ARGV do elsewhere[ARGV[at]] = true end
local max_jobs = settings.j or 0
if is_same and max_jobs > 0 and live_jobs() + #ids > math.ceil(max_jobs / count) then return { 0, #ids } end
local back, delayed, ready, watched, tagged, earliest, noted, done = {}, {}, {}, {}, {}, math.huge, {}, {}
for index, id in ipairs(ids) do
  local is_read, record = pcall(read_record, raws[index])
  local is_free = is_same and is_read and not elsewhere[id] and not (taken[index] and tonumber(taken[index]) > now)
  local schedule_key = is_free and runs[id] and schedule_of(id)
  if runs[id] then is_free = schedule_key end
  if is_free and redis.call('HSETNX', POOL, id, raws[index]) == 1 then
    back[#back + 1] = id
    done[#done + 1], done[#done + 2] = TOPIC .. ' ' .. id, ''
    noted[#noted + 1] = string.format('P%.0f %s %.0f', now, id, record.due)
    if schedule_key then
      redis.call('HSET', attached().RUNS, id, runs[id])
      redis.call('HINCRBY', schedule_key, 'waiting', 1)
      redis.call('HINCRBY', schedule_key, 'skips', -1)
    end
    if record.due > now or schedule_key then  -- what becomes of a run that is due is for the timer
      delayed[#delayed + 1], delayed[#delayed + 2] = string.format('%.0f', record.due), id
      earliest = math.min(earliest, record.due)
    else
      ready[#ready + 1] = id
    end
    local has_limits, expiry = pcall(end_of_waiting, record)  -- another program may have damaged them
    if has_limits and expiry then
      watched[#watched + 1], watched[#watched + 2] = expiry, id
      earliest = math.min(earliest, expiry)
    end
    if record.extra.g then tagged[id] = record.extra.g end
    FLOWS.joined(record.extra)
    ENDS.joined(record.extra)
    if record.extra.ba then BATCHES.reopened(record.extra.ba, 'cancelled') end
  end
end
if #back > 0 then
  ensure_topic()
  redis.call('ZREM', TAKEN, unpack(back))
  redis.call('ZREM', CANCELLED, unpack(back))
  if #delayed > 0 then redis.call('ZADD', DELAY, unpack(delayed)) end
  if #ready > 0 then append_ready(ready, last) end
  if #watched > 0 then redis.call('ZADD', EXPIRY, unpack(watched)) end
  tally('put', #back)
  if settings.ev then note_events(settings.ev, noted) end
  if earliest < math.huge then schedule(earliest) end
  if #ready > 0 then wake_consumers() end
end
-- Without an error when a key has expired, or another program has replaced it: the jobs are stored, and must not be again.
local bulk = of_shard(kept[3])
if #back > 0 and redis.call('EXISTS', bulk) == 1 then redis.pcall('HSET', bulk, unpack(done)) end
redis.pcall('HINCRBY', of_shard('undos'), UNDO.minute(now, redis.call('PTTL', key)), -UNDO.bytes(ids, raws))
redis.call('DEL', key)
redis.pcall('LSET', UNDO.key(name), step, '')
for id, tags in pairs(tagged) do pcall(index_tags, { id }, tags) end
return { #back, #ids - #back }
