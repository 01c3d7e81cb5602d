-- Count the bytes that a topic's jobs use (id, record, what waits for the job, and the store's overhead), one step at a
-- time. Read-only.
-- @include topic
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] cursor, 0 to begin | ARGV[3] bytes that a job uses besides id and record
-- Returns { next cursor, 0 after the last step, bytes }. Jobs put or deleted meanwhile may be counted or not.
-- Bound: about 1000 jobs or 1 MiB of records, and one job; and 100 scans, since a pool that has shrunk is sparse.
local MOST_JOBS, MOST_BYTES, FIRST_PAGE, MOST_SCANS = 1000, 1024 * 1024, 10, 100
local cursor, page, jobs, bytes, scans = ARGV[2], FIRST_PAGE, 0, 0, 0
local FOLLOW, ITEMS = string.sub(POOL, 1, -5) .. 'follow', string.sub(POOL, 1, -5) .. 'items'
local any_waits, waiting_bytes = redis.call('EXISTS', FOLLOW, ITEMS) > 0, 0

-- Count a job's follow-up and the items that are collected for either of them, without reading them.
local function count_waiting(id)
  local follow_up = redis.call('HSTRLEN', FOLLOW, id)
  waiting_bytes = waiting_bytes + follow_up + (redis.call('HGET', ITEMS, id) or 0)
  if follow_up > 0 then waiting_bytes = waiting_bytes + ARGV[3] end
end

repeat
  local reply = redis.call('HSCAN', POOL, cursor, 'COUNT', page)
  cursor, scans = reply[1], scans + 1
  for at = 1, #reply[2], 2 do
    jobs = jobs + 1
    bytes = bytes + 2 * #reply[2][at] + #reply[2][at + 1] + ARGV[3]  -- the id is in the pool and in one sorted set
    if any_waits then count_waiting(reply[2][at]) end
  end
  -- Estimate from the size of these jobs how many more fit.
  local fitting = jobs > 0 and math.floor((MOST_BYTES - bytes) / (bytes / jobs)) or FIRST_PAGE
  page = math.max(1, math.min(fitting, MOST_JOBS - jobs))
until cursor == '0' or jobs >= MOST_JOBS or bytes >= MOST_BYTES or scans >= MOST_SCANS
return { cursor, bytes + waiting_bytes }
