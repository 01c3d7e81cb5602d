-- Add what a process has counted to the history of some topics, each once: a repeated call changes nothing.
-- @flags allow-oom
-- KEYS[1] history/topics ZSET topic -> ms of its last change, the topics that have a history
-- KEYS[2] history/process/<process> HASH n -> number of the last call of the process that was carried out
-- KEYS[3..4] the sums over all topics of the shard, KEYS[5..6] a topic, KEYS[7..8] the next: history/10s and history/5m,
--   LISTs of records, the oldest first. A record is a MessagePack array of whole numbers: the time in 10 s or 5 min since
--   the epoch; put, popped, finished, released, dead, cancelled; delayed, ready, reserved and dead jobs, -1 when they are
--   not known; then a bucket of lateness and its first deliveries, for each bucket that has some. The records of 5 min
--   lack the last one of 10 s.
-- ARGV[1] number of the call, 1 more than that of the last | ARGV[2] how long a history is kept after its last change, ms
-- ARGV[3] most topics of the shard with a history | ARGV[4] after how long without a change a topic may lose its
--   history to another one, ms | ARGV[5] most records of 10 s | ARGV[6] most records of 5 min
-- ARGV[7] what is added to the sums, ARGV[8] to the first topic, ARGV[9] to the next ...: as a record from `put` on,
--   without the jobs by state
-- Returns { now ms, topics that have no history because too many others changed lately }
-- Bound: the topics; the caller sends at most 50.
local SECONDS_10, OF_5_MIN = 10000, 30
local BEFORE_COUNTS, COUNTS, BEFORE_GAUGES, FIRST_PAIR = 1, 6, 7, 12
local NOT_KNOWN = -1
local STATES = { 'delay', 'ready', 'reserved', 'dead' }
-- A last record that is newer than this by so many is of a clock that was wrong; newer by less, it is added to.
local MOST_AHEAD = 360
local call, pack, unpack_record = redis.call, cmsgpack.pack, cmsgpack.unpack
local now, kept_ms = now_ms(), tonumber(ARGV[2])
local bucket = math.floor(now / SECONDS_10)
local most_fine, most_coarse = tonumber(ARGV[5]), tonumber(ARGV[6])

if tonumber(call('HGET', KEYS[2], 'n') or 0) >= tonumber(ARGV[1]) then return { now, 0 } end
call('HSET', KEYS[2], 'n', ARGV[1])
call('PEXPIRE', KEYS[2], kept_ms)

-- Add the counts of `added`, whose pairs begin at `from`, to a record.
local function add(record, added, before_counts, from)
  for at = 1, COUNTS do record[BEFORE_COUNTS + at] = record[BEFORE_COUNTS + at] + added[before_counts + at] end
  if #added < from then return end
  local places = {}
  for at = FIRST_PAIR, #record, 2 do places[record[at]] = at + 1 end
  for at = from, #added, 2 do
    local place = places[added[at]]
    if place then
      record[place] = record[place] + added[at + 1]
    else
      record[#record + 1] = added[at]
      record[#record + 1] = added[at + 1]
    end
  end
end

local function set_gauges(record, gauges)
  for at = 1, 4 do record[BEFORE_GAUGES + at] = gauges[at] end
end

-- The last record, nil for none. A history that another program has damaged is deleted, so that it begins again.
local function last_of(key)
  local found = redis.pcall('LRANGE', key, -1, -1)
  if not found.err then
    if not found[1] then return nil end
    local is_read, record = pcall(unpack_record, found[1])
    if is_read and type(record) == 'table' and #record >= BEFORE_GAUGES + #STATES then return record end
  end
  call('DEL', key)
end

local function append(key, record, most)
  if call('RPUSH', key, pack(record)) > most then call('LPOP', key) end
end

-- Add a record of 10 s that is complete to those of 5 min.
local function close(coarse, record)
  local last, number = last_of(coarse), math.floor(record[1] / OF_5_MIN)
  if last and last[1] >= number then
    add(last, record, BEFORE_COUNTS, FIRST_PAIR)
    set_gauges(last, { unpack(record, BEFORE_GAUGES + 1, BEFORE_GAUGES + 4) })
    call('LSET', coarse, -1, pack(last))
  else
    record[1] = number
    append(coarse, record, most_coarse)
    call('PEXPIRE', coarse, kept_ms)
  end
end

local function add_to_history(fine, coarse, added, gauges)
  local last = last_of(fine)
  if last and last[1] > bucket + MOST_AHEAD then
    call('DEL', fine, coarse)
    last = nil
  end
  if last and last[1] >= bucket then
    add(last, added, 0, COUNTS + 1)
    set_gauges(last, gauges)
    call('LSET', fine, -1, pack(last))
  else
    if last then close(coarse, last) end
    local record = { bucket, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    add(record, added, 0, COUNTS + 1)
    set_gauges(record, gauges)
    append(fine, record, most_fine)
  end
  call('PEXPIRE', fine, kept_ms)
end

local TOPICS = KEYS[1]
local gone = redis.pcall('ZCOUNT', TOPICS, '-inf', now - kept_ms)
if type(gone) ~= 'number' then
  call('DEL', TOPICS)  -- another program has damaged it
elseif gone > 0 then
  call('ZREMRANGEBYRANK', TOPICS, 0, gone - 1)
end

-- Whether the topic has a history, or may have one.
local function is_kept(topic, prefix)
  if call('ZSCORE', TOPICS, topic) or call('ZCARD', TOPICS) < tonumber(ARGV[3]) then return true end
  local oldest = call('ZRANGE', TOPICS, 0, 0, 'WITHSCORES')
  if tonumber(oldest[2]) > now - ARGV[4] then return false end
  local of_shard = string.match(prefix, '^[^}]*}:')
  call('ZREM', TOPICS, oldest[1])
  call('DEL', of_shard .. oldest[1] .. ':history/10s', of_shard .. oldest[1] .. ':history/5m')
  return true
end

add_to_history(KEYS[3], KEYS[4], unpack_record(ARGV[7]), { NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN })
local without = 0
for at = 8, #ARGV do
  local fine, coarse = KEYS[2 * at - 11], KEYS[2 * at - 10]
  local prefix = string.match(fine, '^(.*:)history/10s$')
  local topic = string.match(prefix, '^[^}]*}:(.*):$')
  if is_kept(topic, prefix) then
    call('ZADD', TOPICS, now, topic)
    local gauges = {}
    for state = 1, #STATES do
      local jobs = redis.pcall('ZCARD', prefix .. STATES[state])  -- an error when another program has damaged it
      gauges[state] = type(jobs) == 'number' and jobs or NOT_KNOWN
    end
    local shelved = redis.pcall('HGET', prefix .. 'shelf', 'jobs')
    if type(shelved) == 'string' and gauges[1] ~= NOT_KNOWN then gauges[1] = gauges[1] + tonumber(shelved) end
    add_to_history(fine, coarse, unpack_record(ARGV[at]), gauges)
  else
    without = without + 1
  end
end
call('PEXPIRE', TOPICS, kept_ms)
return { now, without }
