-- The ends of jobs, and what follows from them in the same call of the store. A job ends when it is finished, becomes dead,
-- or is cancelled; not when a put replaces it, or when its retention is over.
-- Keys of a record's extra:
--   oe  `on_end` of contract/ends.py: the job that the end puts; false for none
--   ba  the batch of the job (lib/batches.lua)
--   wt  1 when somebody has waited for the job (watch.lua), and maybe still does
-- A topic has the key `ends`, a STRING, from when a job with one of these is stored until the topic is forgotten. While it
-- has not, calls that cancel jobs need not read them.
-- @include topic record
local BATCHES = {}  -- the functions of lib/batches.lua
local ENDS = { MOST_ID = 255, AT_ONCE = 1000, MOST_OF_VISIT = 200, KEEP = 1, DELAY = 0, OF_FIRST_PARTITION = ':00000000T000000Z' }

function ENDS.matters(extra) return extra.oe or extra.ba or extra.wt end

-- Whether the topic may have jobs whose end matters.
function ENDS.may_matter()
  if ENDS.known == nil then ENDS.known = redis.call('EXISTS', topic_key('ends')) == 1 end
  return ENDS.known
end

-- Note that a job with this extra is stored.
function ENDS.joined(extra)
  if not ENDS.matters(extra) or ENDS.known then return end
  redis.call('SET', topic_key('ends'), 1)
  ENDS.known = true
end

-- The job that an end puts: { topic, id or nil, what a new id is made of, argument of put.lua }. A cipher of a client knows
-- the body by its members: client/encrypted_calls.py.
local function job_of_end(id, record, outcome, result)
  local extra = record.extra
  local topic, attempts = string.match(TOPIC, '^[^#]*'), record.attempts + (outcome == 'finished' and 1 or 0)
  local parts = { '{"topic":"', topic, '","id":"', id, '","outcome":"', outcome, '","attempts":', attempts }
  local function add(name, json)
    parts[#parts + 1] = ',"' .. name .. '":' .. json
  end
  if outcome == 'dead' then add('reason', cjson.encode(extra.d)) end
  if outcome ~= 'finished' and extra.e then add('error', cjson.encode(extra.e)) end
  if result and result ~= '' then add('result', result) end
  add('tags', extra.g and cjson.encode(extra.g) or '[]')
  add('headers', extra.h and cjson.encode(extra.h) or '{}')
  if extra.oe.body then
    local is_collected = extra.y == 0
    add('body', is_collected and '[' .. table.concat(redis.pcall('LRANGE', topic_key('items/') .. id, 0, -1), ',') .. ']'
      or record.rest)
  end
  parts[#parts + 1] = '}'

  local places = { topic = topic, id = id, outcome = outcome }
  local wanted = extra.oe.id and string.gsub(extra.oe.id, '{(%a+)}', places)
  if wanted and #wanted > ENDS.MOST_ID then wanted = nil end
  local seed = string.format('%s %s %s %.0f %d %.0f', topic, id, outcome, record.nonce, attempts, now_ms())
  local own_extra = cjson.encode({ oe = false, c = extra.c, k = extra.k })  -- `k`: what the key allows
  return string.match(extra.oe.topic, '.+'), wanted, seed, own_extra, table.concat(parts)
end

-- Have a job put at the end of the call into a topic of the shard, due at once. `id` is nil for a new one, which is made of
-- `seed`, as is its nonce.
function ENDS.put(topic, id, seed, extra, body)
  local hash = redis.sha1hex(seed)
  local nonce = tonumber(string.sub(hash, -11), 16)
  local head = struct.pack('<BBI8I8I4I4', ENDS.KEEP, ENDS.DELAY, 0, nonce, 0, #extra)
  local puts = ENDS.noted or {}
  ENDS.noted = puts
  puts[#puts + 1] = { topic = topic, id = id, new_id = 'end-' .. string.sub(hash, 1, 32), job = head .. extra .. body }
end

-- Have the job of an end put if it is of an outcome that is meant.
function ENDS.put_if_meant(id, record, outcome, result)
  local on_end = record.extra.oe
  local is_meant = not on_end.on
  for _, one in ipairs(on_end.on or {}) do is_meant = is_meant or one == outcome end
  if is_meant then ENDS.put(job_of_end(id, record, outcome, result)) end
end

-- Tell those who wait for a job, if somebody has, what happened to it: an outcome, or progress.
function ENDS.tell(id, record, what)
  if not record.extra.wt then return end
  local topic = string.match(TOPIC, '^[^#]*')
  redis.call('PUBLISH', 'deferd:ended', string.format('%s %s %.0f %s', topic, id, record.created, what))
end

-- A put replaces the live job `raw` by `record`. Returns the record to store, with the note that somebody waits.
function ENDS.in_place_of(raw, record)
  local is_read, extra = pcall(read_extra, raw)
  if not (is_read and extra.wt) then return record end
  local new = read_record(record)
  new.extra.wt = 1
  return write_record(new)
end

-- A job has ended. `record` is what it was, when it is dead with the reason, and `outcome` is finished, dead or cancelled;
-- `result` is the JSON of the finish, if it had one. Its collected items must still be there.
function ENDS.ended(id, record, outcome, result)
  local extra = record.extra
  ENDS.tell(id, record, outcome)
  -- The job ends also when another program has damaged what follows from that.
  if extra.ba then pcall(BATCHES.ended, extra.ba, outcome) end
  if extra.oe then pcall(ENDS.put_if_meant, id, record, outcome, result) end
end

-- The same for a job that is cancelled, by its record as it is stored. One that cannot be read puts nothing.
function ENDS.cancelled(id, raw)
  local is_read, extra = pcall(read_extra, raw)
  if is_read and ENDS.matters(extra) then ENDS.ended(id, read_record(raw), 'cancelled') end
end

-- The KEYS of scripts on another topic of the shard.
local function keys_of(topic)
  local keys = {}
  for index = 1, 16 do
    local is_of_shard = index >= 10 and index <= 12
    keys[index] = is_of_shard and KEYS[index] or of_shard(topic .. ':' .. string.match(KEYS[index], '[^:]*$'))
  end
  return keys
end

-- Put what ends have noted: lib/calls.lua calls this at the end of each call, with its scripts. A topic whose keys another
-- program has damaged gets nothing: the jobs have ended by now, and the others of the call must not be stranded.
function ENDS.act(scripts)
  local noted, of_topic = ENDS.noted, {}
  ENDS.noted = nil
  for _, one in ipairs(noted) do
    local puts = of_topic[one.topic]
    if not puts then
      -- A put must know whether its id is in another partition, or on the shelf. Here nobody can be asked.
      local has_settings, settings = pcall(cjson.decode, redis.call('HGET', SETTINGS, one.topic) or '')
      local has_partitions = has_settings and settings.n
      local shelved = tonumber(redis.pcall('HGET', of_shard(one.topic .. ':shelf'), 'jobs')) or 0
      puts = { keys = keys_of(one.topic), argv = {}, takes_ids = not has_partitions and shelved <= 0 }
      -- It is put into the first partition, as are ids like those of runs (engine/partitions.py).
      puts.new_ids_end = has_partitions and ENDS.OF_FIRST_PARTITION or ''
      of_topic[one.topic] = puts
      of_topic[#of_topic + 1] = one.topic
    end
    local argv = puts.argv[#puts.argv]
    if not argv or #argv >= 2 * ENDS.AT_ONCE then
      argv = { one.topic, '0', '' }
      puts.argv[#puts.argv + 1] = argv
    end
    argv[#argv + 1], argv[#argv + 2] = puts.takes_ids and one.id or one.new_id .. puts.new_ids_end, one.job
  end
  for _, topic in ipairs(of_topic) do
    for _, argv in ipairs(of_topic[topic].argv) do
      ENDS.has_room = true
      pcall(scripts.put, of_topic[topic].keys, argv)
      ENDS.has_room = false
    end
  end
end
