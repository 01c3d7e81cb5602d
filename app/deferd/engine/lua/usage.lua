-- Count the bytes that a topic's jobs use, also those on the shelf, as if they were in the store; their follow-ups,
-- collected items, tags, groups, consumers and request ids included, one step at a time.
-- Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] part, 'pool' to begin | ARGV[3] cursor, 0 to begin
-- Bytes that the store uses beside the texts: ARGV[4] for a job, a follow-up or a collection of items, ARGV[5] for one
--   of the items, ARGV[6] for a tag of a job, a group, its slot or its turns, ARGV[7] for a held job, with its touches and its part of a request
-- Returns { part and cursor of the next step, '' after the last one, bytes }. What is put, deleted or becomes a job
--   meanwhile may be counted or not.
-- Bound: about 1000 jobs or 1 MiB of records, and one job; and 100 scans, since a hash that has shrunk is sparse.
local MOST_JOBS, MOST_BYTES, FIRST_PAGE, MOST_SCANS = 1000, 1024 * 1024, 10, 100
local part, cursor, jobs, read, bytes, scans, page = ARGV[2], ARGV[3], 0, 0, 0, 0, FIRST_PAGE
local JOB, ITEM, TAG, HELD = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local here = attached()
local HASHES = {
  pool = POOL, holders = HOLDERS, requests = REQUESTS, follow = here.FOLLOW, items = here.ITEMS, tagged = TAGGED,
  groups = topic_key('groups'), flows = topic_key('flows'),
}
local NEXT = {
  pool = 'holders', holders = 'requests', requests = 'follow', follow = 'items', items = 'tagged', tagged = 'groups',
  groups = 'flows',
}

local function of_record(id, record) return 2 * #id + #record + JOB end  -- the id is in the pool and in one sorted set

-- How many bytes an entry of each part uses.
local bytes_of = { pool = of_record, follow = of_record }

function bytes_of.items(id, item_bytes)
  local key = here.items_key(id)
  return (tonumber(item_bytes) or 0) + redis.call('LLEN', key) * ITEM + #id + #key + JOB
end

function bytes_of.holders(id, consumer) return #id + #consumer end

-- The id and the request id are in `requests`, and in the key of the request; the id is in that of the touches, too.
function bytes_of.requests(id, request_id) return 3 * #id + 2 * #request_id end

-- Tags are in `tagged`; each is also a key, and the job a member of that.
function bytes_of.tagged(id, tags)
  local _, spaces = string.gsub(tags, ' ', ' ')
  return #id + 2 * #tags + (spaces + 1) * (#TOPIC + #id + TAG)
end

function bytes_of.groups(group, entry) return #group + #entry + TAG end

-- Each flow has a turn besides.
function bytes_of.flows(flow, slot) return 2 * #flow + #slot + 2 * TAG end

local function next_part()
  local next = part
  local others = redis.call('EXISTS', HOLDERS, REQUESTS, here.FOLLOW, here.ITEMS, TAGGED, HASHES.groups, HASHES.flows)
  if part == 'pool' and others == 0 then return '' end
  repeat
    next = NEXT[next]
  until not next or redis.call('EXISTS', HASHES[next]) == 1
  return next or ''
end

if part == 'pool' and cursor == '0' then
  bytes = redis.call('ZCARD', RESERVED) * HELD
  local jobs_there, bytes_there, tags_there = unpack(redis.call('HMGET', topic_key('shelf'), 'jobs', 'bytes', 'tags'))
  if jobs_there then bytes = bytes + bytes_there + jobs_there * JOB + tags_there * TAG end
end
repeat
  local reply = redis.call('HSCAN', HASHES[part], cursor, 'COUNT', page)
  cursor, scans = reply[1], scans + 1
  for at = 1, #reply[2], 2 do
    local id, value = reply[2][at], reply[2][at + 1]
    jobs, read = jobs + 1, read + #id + #value
    bytes = bytes + bytes_of[part](id, value)
  end
  -- Estimate from the size of these jobs how many more fit.
  local fitting = jobs > 0 and math.floor((MOST_BYTES - read) / (read / jobs)) or FIRST_PAGE
  page = math.max(1, math.min(fitting, MOST_JOBS - jobs))
  if cursor == '0' then part, page = next_part(), FIRST_PAGE end
until part == '' or jobs >= MOST_JOBS or read >= MOST_BYTES or scans >= MOST_SCANS
return { part, cursor, bytes }
