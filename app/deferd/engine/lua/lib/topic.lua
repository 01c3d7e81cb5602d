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
--   KEYS[10] settings  HASH topic -> JSON: `po` the policy, an object with the keys of record.lua, `j` max_jobs,
--                     `du` durability as a level of store/durability_levels.py, `p` 1 while paused, `ps` since which
--                     ms, `pb` by the key of which name and `pr` why, if that is known, `pl` the defaults for due times,
--                     JSON text that only engine/placement.py reads, `ev` how many events to keep, `pu` while its jobs are
--                     pushed (push_set.lua): { n most requests under way, j most jobs of one, r most requests a second,
--                     if there is such a limit }, `n` the number of partitions if there are several, then also `rv`
--                     the revision of these settings, `li` limits: { n most reserved jobs, r rate (lib/rate.lua), g the same
--                     for each group, s the same and w weight for groups by name }; or ''
--   KEYS[11] topics    ZSET topic -> 0, all topics of the shard in the order of their names
--   KEYS[12] due       ZSET topic -> the next ms at which the timer has work there
--   KEYS[13] tally     HASH what became of all jobs ever put: put, finished, cancelled (by a cancel, a purge or a put
--                      that replaced it, before it was finished), dropped (dead, and its retention ended), lost
--                      (missing at a repair). At any time
--                      put = finished + cancelled + dropped + lost + the dead and the live jobs in the pool
--   KEYS[14] requests  HASH id -> while it is reserved by a pop that gave a request id: that; then, behind a space, ms at
--                     which it was handed out, if its lease does not tell that (lib/hand_out.lua); then maybe what
--                     lib/flows.lua needs
--   KEYS[15] tagged    HASH id -> its tags, separated by spaces; only jobs with tags (lib/tags.lua)
--   KEYS[16] taken     ZSET id -> ms until which it stays taken after its job was finished; only jobs with
--                      `unique_for`, and only while no other job has the id
-- Further keys of a topic that keeps events (lib/events.lua): events/log, events/seq; of one whose jobs have groups or
-- priorities, or which has limits (lib/flows.lua): groups, flows, flows/free, turns, limited, rate/...
-- Further keys of the whole shard, named by of_shard():
--            partitioned HASH topic -> the numbers of partitions, newest first, a space, and "!" while a partition may
--                      have other settings; only of topics with several (engine/partitions.py)
--            calendars HASH name -> JSON; only in shard 0 (engine/calendars.py)
--            idle      HASH topic -> "put ms": how many jobs had been put when it was found empty, and when that was
--            tally     HASH the sums of the tallies of forgotten topics
--            schedules/missed  ZSET schedule -> ms at which a run was last missed (lib/missed_runs.lua)
--            events/topics ZSET topic -> 0, the topics that have events
--            consumers/reports, consumers/reported, consumers/topics  only in shard 0, see publish_consumers.lua
--            activity, activity/admin  ZSET JSON -> number; only in shard 0, see record_activity.lua
--            history/topics, history/process/ID, and for each topic history/10s, history/5m  see publish_history.lua
--            push      HASH topic -> how its jobs are pushed, see push_set.lua; for each such topic push/state, a HASH,
--                      see push_take.lua
--            of_key/KEY  what is remembered for a key of the API, see lib/of_key.lua
--            tasks, tasks/running, task/<id>  only in shard 0, see engine/tasks.py
--            :request/*ID  HASH topic -> '': the topics of the shard that remember this request of a pop by patterns,
--                      so that a repetition finds them. "*" precedes the request ids of such pops, also in request keys
local ASTERISK = 42
-- Those of the call; lib/calls.lua sets them.
local KEYS, ARGV
local POOL, DELAY, READY, RESERVED, DEAD, FINISHED
local EXPIRY, HOLDERS, CANCELLED, SETTINGS, TOPICS, DUE
local TALLY, REQUESTS, TAGGED, TAKEN
local TOPIC

local FLOWS = { MARK = ' ([=!][^ ]*)$' }  -- the functions of lib/flows.lua; MARK finds the third word in REQUESTS

-- A key of the topic that is not in KEYS.
local function topic_key(name) return string.sub(POOL, 1, -5) .. name end

-- The key of a request id: a HASH that remembers the deliveries of a pop, while they live and for an hour at most:
-- id -> "place in the response, nonce, attempt, how often the request was repeated". It is not in KEYS, because calls
-- that end a delivery do not know the request id; it is in the same slot as the others.
local function request_key(request_id) return topic_key('request/') .. request_id end

local MOST_IN_LIST = 64
local LONG_VALUE = '-----------------------------------------------------------------'

-- Set fields of a hash: field, value, field, value ...; returns how many of them are new. Servers keep a hash of up to
-- 512 fields and values of up to 64 bytes each as one list, which every access scans. For many fields, a longer value
-- that the same command replaces makes it a hash table. Bound: the fields, at most 1000.
local function set_fields(key, fields)
  if #fields <= 2 * MOST_IN_LIST then return redis.call('HSET', key, unpack(fields)) end
  return redis.call('HSET', key, fields[1], LONG_VALUE, unpack(fields))
end

local function of_shard(name) return string.sub(DUE, 1, -4) .. name end

-- Remember that the topic has deliveries of a pop by patterns: a repetition of the pop finds the topic by this.
local function remember_topic(request_id, kept_ms)
  local key = of_shard(':request/') .. request_id
  redis.call('HSET', key, TOPIC, '')
  if redis.call('PTTL', key) < kept_ms then redis.call('PEXPIRE', key, kept_ms) end
end

-- For so many ids a command that finds nothing costs less than to check first whether there is anything.
local FEW_IDS = 8

-- Forget the consumers and requests of deliveries that end; `are_over`: the jobs end, too. Returns what REQUESTS had for
-- each, false for nothing; no values if it was empty. Scripts call it before the jobs leave their lists: it fails for a key
-- of FLOWS that is of the wrong type. Bound: the ids, at most 1000.
local function forget_holders(ids, are_over)
  local are_few = #ids <= FEW_IDS
  if are_few or redis.call('EXISTS', HOLDERS) == 1 then redis.call('HDEL', HOLDERS, unpack(ids)) end
  if not are_few and redis.call('EXISTS', REQUESTS) == 0 then return {} end
  local entries, requested, by_entry = redis.call('HMGET', REQUESTS, unpack(ids)), {}, {}
  local last_entry, ids_of_last  -- most ids of a batch are of the same request
  for index, entry in ipairs(entries) do
    if entry then
      if entry ~= last_entry then
        last_entry, ids_of_last = entry, by_entry[entry] or {}
        by_entry[entry] = ids_of_last
      end
      ids_of_last[#ids_of_last + 1] = ids[index]
      requested[#requested + 1] = ids[index]
    end
  end
  if #requested == 0 then return entries end
  for entry, ids_of_entry in pairs(by_entry) do
    local request_id = string.match(entry, '^[^ ]*')
    if request_id ~= '' then redis.call('HDEL', request_key(request_id), unpack(ids_of_entry)) end
    local mark = string.match(entry, FLOWS.MARK)
    if mark then FLOWS.ended(mark, #ids_of_entry, are_over) end
    if string.byte(request_id) == ASTERISK and redis.call('EXISTS', request_key(request_id)) == 0 then
      redis.call('HDEL', of_shard(':request/') .. request_id, TOPIC)
    end
  end
  redis.call('HDEL', REQUESTS, unpack(requested))
  return entries
end

-- Tell the processes that push the topic's jobs, if they are pushed, that a job was removed while a consumer held it.
local function tell_pushers(id)
  local settings = redis.call('HGET', SETTINGS, TOPIC)
  if settings and string.find(settings, '"pu":', 1, true) then
    redis.call('PUBLISH', 'deferd:push', TOPIC .. ' ' .. id)
  end
end

-- Publish that the topic may have something for waiting consumers; `mark` is the timer's, if it is the caller.
local function wake_consumers(mark)
  redis.call('PUBLISH', 'deferd:ready', mark and TOPIC .. ' ' .. mark or TOPIC)
end

-- Make the timer visit the topic at `ms`, and wake it if that is earlier than all its other work.
local function schedule(ms)
  if redis.call('ZADD', DUE, 'LT', 'CH', ms, TOPIC) == 0 then return end
  local first = redis.call('ZRANGE', DUE, 0, 1, 'WITHSCORES')
  if first[1] == TOPIC and not (first[4] and tonumber(first[4]) <= ms) then redis.call('PUBLISH', 'deferd:due', DUE) end
end

-- After a change of how many events the topic keeps: drop those beyond.
local function keep_events(before, most)
  if not before or before == most then return end
  if most then
    redis.pcall('LTRIM', topic_key('events/log'), -most, -1)
  else
    redis.call('DEL', topic_key('events/log'), topic_key('events/seq'))
    redis.pcall('ZREM', of_shard('events/topics'), TOPIC)
  end
end

-- After how long without a put a topic that has neither jobs nor settings is forgotten.
local FORGET_AFTER_MS = 3600000

-- How many delayed jobs of the topic are on the shelf (lib/shelf.lua).
local function shelved_jobs() return tonumber(redis.call('HGET', topic_key('shelf'), 'jobs') or 0) end

-- How many live jobs the topic has: delayed ones, also on the shelf, ready and reserved ones.
local function live_jobs()
  return redis.call('HLEN', POOL) - redis.call('ZCARD', DEAD) - redis.call('ZCARD', FINISHED) + shelved_jobs()
end

-- Forget a topic that has neither jobs nor settings. Its tally is added to the shard's. The timer still visits it for
-- tombstones.
local function forget_topic()
  redis.call('HDEL', SETTINGS, TOPIC)
  redis.call('ZREM', TOPICS, TOPIC)
  redis.call('HDEL', of_shard('idle'), TOPIC)
  redis.call('PEXPIRE', topic_key('shelf'), 7 * 86400000)  -- no call of a script comes as late as that
  local tally = redis.call('HGETALL', TALLY)
  redis.call('DEL', TALLY, topic_key('runs'), topic_key('events/log'), topic_key('events/seq'), topic_key('groups'),
    topic_key('flows'), topic_key('flows/free'), topic_key('turns/newest'), topic_key('turns'), topic_key('limited'),
    topic_key('ends'))
  redis.pcall('ZREM', of_shard('events/topics'), TOPIC)  -- an error when another program has damaged it
  for at = 1, #tally, 2 do
    redis.call('HINCRBY', of_shard('tally'), tally[at], tally[at + 1])
  end
end

local function tally(outcome, count)
  if count > 0 then redis.call('HINCRBY', TALLY, outcome, count) end
end

-- The settings of the topic as they are stored; an empty table if there are none.
local function stored_settings()
  local raw = redis.call('HGET', SETTINGS, TOPIC)
  return raw and raw ~= '' and cjson.decode(raw) or {}
end

-- Make the topic known; returns its settings as a table, empty if there are none, and whether it was unknown before.
local function ensure_topic()
  local raw = redis.call('HGET', SETTINGS, TOPIC)
  if not raw then
    local first = redis.call('HLEN', SETTINGS) < MOST_IN_LIST and '' or LONG_VALUE  -- as in set_fields
    redis.call('HSET', SETTINGS, TOPIC, first, TOPIC, '')
    redis.call('ZADD', TOPICS, 0, TOPIC)
    return {}, true
  end
  return raw == '' and {} or cjson.decode(raw), false
end
