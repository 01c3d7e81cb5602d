-- The keys of one topic. Every script on a topic takes these KEYS in this order and the topic's name as ARGV[1]:
--   KEYS[1]  pool      HASH id -> record (lib/record.lua)
--   KEYS[2]  delay     ZSET id -> due ms
--   KEYS[3]  ready     ZSET id -> position in the Ready list, whole numbers; the lowest is handed out first
--   KEYS[4]  reserved  ZSET id -> lease end ms
--   KEYS[5]  dead      ZSET id -> retention end ms
--   KEYS[6]  finished  ZSET id -> retention end ms
--   KEYS[7]  expiry    ZSET id -> ms after which a first delivery is too late; only jobs with a ttl, until then
--   KEYS[8]  holders   HASH id -> consumer, while reserved by one that gave its name
--   KEYS[9]  cancelled ZSET "id" and "id nonce attempt" -> ms until which the holder of a cancelled job is told so
--   KEYS[10] settings  HASH topic -> JSON: the policy keys of record.lua, `j` max_jobs,
--                     `l` durability as a level of store/levels.py, `p` 1 while paused; or ''
--   KEYS[11] topics    ZSET topic -> 0, all topics of the shard in the order of their names
--   KEYS[12] due       ZSET topic -> the next ms at which the timer has work there
--   KEYS[13] tally     HASH what became of all jobs ever put: put, finished, cancelled (by a cancel, a purge or a put in
--                      its place, before it was finished), dropped (dead, and its retention ended), lost (missing when
--                      a repair looked). At any time
--                      put = finished + cancelled + dropped + lost + the dead and the live jobs in the pool
local POOL, DELAY, READY, RESERVED, DEAD, FINISHED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local EXPIRY, HOLDERS, CANCELLED, SETTINGS, TOPICS, DUE = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local TALLY = KEYS[13]
local TOPIC = ARGV[1]

-- Tell every process that the topic may have something for a waiting consumer; `mark` is that of a timer, if it did it.
local function wake_consumers(mark)
  redis.call('PUBLISH', 'deferd:ready', mark and TOPIC .. ' ' .. mark or TOPIC)
end

-- See to it that the timer visits the topic at `ms`; wake it when that is sooner than all it has to do.
local function schedule(ms)
  local head = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
  redis.call('ZADD', DUE, 'LT', ms, TOPIC)
  if not head[2] or ms < tonumber(head[2]) then
    redis.call('PUBLISH', 'deferd:due', DUE)
  end
end

-- Only after another write: a store that is out of memory refuses a script whose first write adds.
local function tally(outcome, count)
  if count > 0 then redis.call('HINCRBY', TALLY, outcome, count) end
end

-- The topic's settings as a table, empty if there are none; makes the topic known if it was not.
local function settings_of_known_topic()
  local raw = redis.call('HGET', SETTINGS, TOPIC)
  if not raw then
    redis.call('HSET', SETTINGS, TOPIC, '')
    redis.call('ZADD', TOPICS, 0, TOPIC)
    return {}
  end
  return raw == '' and {} or cjson.decode(raw)
end
