-- The keys of one topic. Every script on a topic takes these KEYS in this order and the topic's name as ARGV[1]:
--   KEYS[1]  pool      HASH id -> record (lib/record.lua)
--   KEYS[2]  delay     ZSET id -> due ms
--   KEYS[3]  ready     ZSET id -> position in the Ready list, whole numbers; the lowest is handed out first
--   KEYS[4]  reserved  ZSET id -> lease end ms
--   KEYS[5]  dead      ZSET id -> retention end ms
--   KEYS[6]  finished  ZSET id -> retention end ms
--   KEYS[7]  expiry    ZSET id -> while it waits: ms at which it becomes dead, because of its ttl (until the first
--                      delivery) or its deadline; while it is reserved: ms at which its lease ends at the latest,
--                      because of its time limit or deadline
--   KEYS[8]  holders   HASH id -> consumer, while reserved by one that gave its name
--   KEYS[9]  cancelled ZSET "id" and "id nonce attempt" -> ms until which the holder gets the code of cancelled jobs
--   KEYS[10] settings  HASH topic -> JSON: the policy keys of record.lua, but `d` for the deadline, `j` max_jobs,
--                     `l` durability as a level of store/durability_levels.py, `p` 1 while paused; or ''
--   KEYS[11] topics    ZSET topic -> 0, all topics of the shard in the order of their names
--   KEYS[12] due       ZSET topic -> the next ms at which the timer has work there
--   KEYS[13] tally     HASH what became of all jobs ever put: put, finished, cancelled (by a cancel, a purge or a put
--                      that replaced it, before it was finished), dropped (dead, and its retention ended), lost
--                      (missing at a repair). At any time
--                      put = finished + cancelled + dropped + lost + the dead and the live jobs in the pool
--   KEYS[14] requests  HASH id -> request id, while reserved by a pop that gave one
-- Further keys of the whole shard, named by of_shard():
--            idle      HASH topic -> "put ms": how many jobs had been put when it was found empty, and when that was
--            tally     HASH the sums of the tallies of forgotten topics
local POOL, DELAY, READY, RESERVED, DEAD, FINISHED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local EXPIRY, HOLDERS, CANCELLED, SETTINGS, TOPICS, DUE = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local TALLY, REQUESTS = KEYS[13], KEYS[14]
local TOPIC = ARGV[1]

-- The key of a request id: a HASH that remembers the deliveries of a pop, while they live and for an hour at most:
-- id -> "place in the response, nonce, attempt, how often the request was repeated". It is not in KEYS, because calls
-- that end a delivery do not know the request id; it is in the same slot as the others.
local function request_key(request_id)
  return string.gsub(POOL, 'pool$', 'request/') .. request_id
end

-- Forget the consumers and request ids of deliveries that end. Bound: the ids, at most 1000.
local function forget_holders(ids)
  if redis.call('EXISTS', HOLDERS) == 1 then redis.call('HDEL', HOLDERS, unpack(ids)) end
  if redis.call('EXISTS', REQUESTS) == 0 then return end
  local by_request = {}
  for index, request_id in ipairs(redis.call('HMGET', REQUESTS, unpack(ids))) do
    if request_id then
      by_request[request_id] = by_request[request_id] or {}
      table.insert(by_request[request_id], ids[index])
    end
  end
  for request_id, ids_of_request in pairs(by_request) do
    redis.call('HDEL', request_key(request_id), unpack(ids_of_request))
    redis.call('HDEL', REQUESTS, unpack(ids_of_request))
  end
end

-- Publish that the topic may have something for waiting consumers; `mark` is the timer's, if it is the caller.
local function wake_consumers(mark)
  redis.call('PUBLISH', 'deferd:ready', mark and TOPIC .. ' ' .. mark or TOPIC)
end

-- Make the timer visit the topic at `ms`, and wake it if that is earlier than all its other work.
local function schedule(ms)
  local head = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
  redis.call('ZADD', DUE, 'LT', ms, TOPIC)
  if not head[2] or ms < tonumber(head[2]) then
    redis.call('PUBLISH', 'deferd:due', DUE)
  end
end

-- After how long without a put a topic that has neither jobs nor settings is forgotten.
local FORGET_AFTER_MS = 3600000

local function of_shard(name) return string.gsub(DUE, 'due$', '') .. name end

-- Forget a topic that has neither jobs nor settings. Its tally is added to the shard's. The timer still visits it for
-- tombstones.
local function forget_topic()
  redis.call('HDEL', SETTINGS, TOPIC)
  redis.call('ZREM', TOPICS, TOPIC)
  redis.call('HDEL', of_shard('idle'), TOPIC)
  local tally = redis.call('HGETALL', TALLY)
  redis.call('DEL', TALLY)
  for at = 1, #tally, 2 do
    redis.call('HINCRBY', of_shard('tally'), tally[at], tally[at + 1])
  end
end

-- Only after another write: a store that is out of memory refuses a script whose first write adds data.
local function tally(outcome, count)
  if count > 0 then redis.call('HINCRBY', TALLY, outcome, count) end
end

-- Make the topic known; returns its settings as a table, empty if there are none, and whether it was unknown before.
local function ensure_topic()
  local raw = redis.call('HGET', SETTINGS, TOPIC)
  if not raw then
    redis.call('HSET', SETTINGS, TOPIC, '')
    redis.call('ZADD', TOPICS, 0, TOPIC)
    return {}, true
  end
  return raw == '' and {} or cjson.decode(raw), false
end
