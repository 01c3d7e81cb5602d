-- Batches: jobs that are counted under a name. When a batch is sealed and all its jobs have ended, one job is put, in the
-- same call of the store. Keys of the shard:
--   batch/NAME         HASH: `on_end` (JSON: topic, maybe id), `created` ms, which also says which batch of the name it
--                      is, `joined`, `finished`, `dead`, `cancelled` (none: 0), maybe `expect`, `sealed` 1, `completed` ms,
--                      `deleting` 1: it puts no job
--   batches            ZSET NAME -> 0, in the order of the names
--   batches/completed  ZSET NAME -> ms until which it is kept
-- The record of a job of a batch has `ba`: "NAME created". It has the tag batch:NAME, too, so that index_tags has a
-- topic with such jobs in `tagged`.
-- @include topic clock ends
BATCHES.NOT_FOUND, BATCHES.SEALED = -6, -7
BATCHES.KEPT_MS, BATCHES.MOST_COMPLETED, BATCHES.FORGOTTEN_AT_ONCE = 86400000, 100000, 10

function BATCHES.key(name) return of_shard('batch/' .. name) end

-- Forget some completed batches: those whose time is over, and those that are too many. The key of a batch expires, so this
-- is for their names. Bound: FORGOTTEN_AT_ONCE.
function BATCHES.forget_some(now)
  local names, completed = of_shard('batches'), of_shard('batches/completed')
  local over = redis.call('ZRANGEBYSCORE', completed, '-inf', now, 'LIMIT', 0, BATCHES.FORGOTTEN_AT_ONCE)
  local too_many = redis.call('ZCARD', completed) - #over - BATCHES.MOST_COMPLETED
  if too_many > 0 then
    local to = #over + math.min(too_many, BATCHES.FORGOTTEN_AT_ONCE) - 1
    for _, name in ipairs(redis.call('ZRANGE', completed, #over, to)) do over[#over + 1] = name end
  end
  for _, name in ipairs(over) do
    redis.call('DEL', BATCHES.key(name))
    redis.call('ZREM', names, name)
    redis.call('ZREM', completed, name)
  end
end

-- Whether a batch that has these fields is there: a completed one is not for ever.
function BATCHES.is_there(created, completed, now)
  return created and not (completed and tonumber(completed) + BATCHES.KEPT_MS <= now)
end

-- A batch that a job is to join: { name, ba: the value for the job's record, refusal: why it cannot, a code of put.lua }.
-- With `was_checked` a sealed one takes it. One whose key is of the wrong type is not there: an error would strand the jobs
-- that the call has stored before.
function BATCHES.to_join(name, now, was_checked)
  local created, sealed, completed = unpack(redis.pcall('HMGET', BATCHES.key(name), 'created', 'sealed', 'completed'))
  if not BATCHES.is_there(created, completed, now) then return { refusal = BATCHES.NOT_FOUND } end
  local refusal = (completed or sealed and not was_checked) and BATCHES.SEALED or nil
  return { name = name, ba = name .. ' ' .. created, refusal = refusal }
end

-- Tags with that of the batch which a value of `ba` names.
function BATCHES.tags_with(tags, ba)
  local tag = 'batch:' .. string.match(ba, '^%S*')
  for _, other in ipairs(tags) do
    if other == tag then return tags end
  end
  tags[#tags + 1] = tag
  return tags
end

-- Count a new job of a batch.
function BATCHES.joined(name)
  local key = BATCHES.key(name)
  local joined, expect = redis.pcall('HINCRBY', key, 'joined', 1), redis.call('HGET', key, 'expect')
  if (tonumber(joined) or 0) >= (tonumber(expect) or math.huge) then redis.call('HSET', key, 'sealed', 1) end
end

-- The value of `ba` in a raw record, nil for a job of no batch, without decoding the extra of most.
function BATCHES.of_raw(raw)
  if #raw < HEADER_BYTES then return nil end  -- another program has damaged it
  local length, at = struct.unpack('<I4', raw, 23)
  local extra = string.sub(raw, at, at + length - 1)
  if not string.find(extra, '"ba":"', 1, true) then return nil end
  local is_read, decoded = pcall(cjson.decode, extra)
  return is_read and decoded.ba or nil
end

-- The key and name of the batch that a value of `ba` names, and one of its counts, when it is that batch and not completed;
-- nil otherwise, also when another program has damaged it: the job has ended in any case.
local function open_batch(ba, outcome)
  local name, token = string.match(ba, '^(%S+) (%d+)$')
  if not name then return nil end
  local key = BATCHES.key(name)
  local fields = redis.pcall('HMGET', key, 'created', 'completed', outcome)
  if fields[1] ~= token or fields[2] then return nil end
  return key, name, tonumber(fields[3]) or 0
end

-- Complete a batch if it is sealed and all its jobs have ended: then its job is put.
function BATCHES.settle(name)
  local key, now = BATCHES.key(name), now_ms()
  local sealed, completed, joined, finished, dead, cancelled, on_end, created, deleting = unpack(redis.call('HMGET', key,
    'sealed', 'completed', 'joined', 'finished', 'dead', 'cancelled', 'on_end', 'created', 'deleting'))
  if not sealed or completed then return end
  finished, dead, cancelled = tonumber(finished or 0), tonumber(dead or 0), tonumber(cancelled or 0)
  if finished + dead + cancelled < tonumber(joined or 0) then return end
  redis.call('HSET', key, 'completed', string.format('%.0f', now))
  redis.call('PEXPIRE', key, BATCHES.KEPT_MS)
  if not deleting then
    local body = string.format('{"batch":"%s","finished":%d,"dead":%d,"cancelled":%d}', name, finished, dead, cancelled)
    local job = cjson.decode(on_end)
    ENDS.put(job.topic, job.id, string.format('batch %s %s', name, created), '{"oe":false}', body)
  end
  -- Last: these fail for a key of the wrong type.
  redis.call('ZADD', of_shard('batches/completed'), now + BATCHES.KEPT_MS, name)
  BATCHES.forget_some(now)
end

-- Count the end of a job of a batch: `outcome` is finished, dead or cancelled.
function BATCHES.ended(ba, outcome)
  local key, name = open_batch(ba, outcome)
  if not key then return end
  redis.call('HINCRBY', key, outcome, 1)
  BATCHES.settle(name)
end

-- Take the end of a job back that is there again, unless its batch has completed.
function BATCHES.reopened(ba, outcome)
  local key, _, count = open_batch(ba, outcome)
  if key and count > 0 then redis.call('HINCRBY', key, outcome, -1) end
end
