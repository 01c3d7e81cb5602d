-- Check the jobs of one step through the pool: each record can be read, each job is in exactly one state, and its other
-- entries match. All data is of one instant, so that a busy topic raises no false alarm.
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] cursor, 0 to begin | ARGV[4] most jobs to check
-- Returns { next cursor, 0 after the last step, jobs checked, { kind, id, detail, ... } for each finding }
-- Bound: about ARGV[4] jobs (the caller sends at most 1000) or 1 MiB of records, and 100 scans.
local MOST_BYTES = 1024 * 1024
local FIRST_PAGE = 10
local MOST_SCANS = 100
local now, cursor, wanted = now_ms(), ARGV[3], tonumber(ARGV[4])

-- Scores of `ids` in a sorted set that is often empty.
local function scores_in(key, ids)
  if redis.call('EXISTS', key) == 0 then return {} end
  return redis.call('ZMSCORE', key, unpack(ids))
end

local function check(ids, raws)
  local delayed, ready, reserved = scores_in(DELAY, ids), scores_in(READY, ids), scores_in(RESERVED, ids)
  local dead, finished, expiry = scores_in(DEAD, ids), scores_in(FINISHED, ids), scores_in(EXPIRY, ids)
  local holders = redis.call('EXISTS', HOLDERS) == 1 and redis.call('HMGET', HOLDERS, unpack(ids)) or {}
  local requests = redis.call('EXISTS', REQUESTS) == 1 and redis.call('HMGET', REQUESTS, unpack(ids)) or {}
  local tagged = redis.call('EXISTS', TAGGED) == 1 and redis.call('HMGET', TAGGED, unpack(ids)) or {}
  for index, id in ipairs(ids) do
    local scores = {
      delayed = delayed[index] and tonumber(delayed[index]), ready = ready[index] and tonumber(ready[index]),
      reserved = reserved[index] and tonumber(reserved[index]),
      dead = dead[index] and tonumber(dead[index]), finished = finished[index] and tonumber(finished[index]),
    }
    local watched = expiry[index] and tonumber(expiry[index]) or nil
    check_job(id, raws[index], scores, watched, holders[index] or requests[index], tagged[index], now)
  end
end

local checked, bytes, page, scans = 0, 0, FIRST_PAGE, 0
repeat
  local reply = redis.call('HSCAN', POOL, cursor, 'COUNT', page)
  cursor, scans = reply[1], scans + 1
  local ids, raws = {}, {}
  for at = 1, #reply[2], 2 do
    ids[#ids + 1] = reply[2][at]
    raws[#raws + 1] = reply[2][at + 1]
    bytes = bytes + #reply[2][at + 1]
    checked = checked + 1
    if #ids == MOST_TOGETHER then
      check(ids, raws)
      ids, raws = {}, {}
    end
  end
  if #ids > 0 then check(ids, raws) end
  -- Estimate from the size of these jobs how many more fit.
  local fitting = checked > 0 and math.floor((MOST_BYTES - bytes) / (bytes / checked)) or FIRST_PAGE
  page = math.max(1, math.min(fitting, wanted - checked, MOST_TOGETHER))
until cursor == '0' or checked >= wanted or bytes >= MOST_BYTES or scans >= MOST_SCANS
return { cursor, checked, findings }
