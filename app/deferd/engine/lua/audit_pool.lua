-- Check the jobs of one step through the pool: each record can be read, each job is in exactly one state, and its other
-- entries match. All data is of one instant, so that a busy topic raises no false alarm.
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] cursor, 0 to begin | ARGV[4] most jobs to check
-- Returns { next cursor, 0 after the last step, jobs checked, { kind, id, detail, ... } for each finding }
-- Bound: about ARGV[4] jobs (the caller sends at most 1000) or 1 MiB of records, and 100 scans.
local now = now_ms()

local function check(ids, raws)
  local delayed, ready, reserved = scores_in(DELAY, ids), scores_in(READY, ids), scores_in(RESERVED, ids)
  local dead, finished, expiry = scores_in(DEAD, ids), scores_in(FINISHED, ids), scores_in(EXPIRY, ids)
  local holders, requests, tagged = fields_in(HOLDERS, ids), fields_in(REQUESTS, ids), fields_in(TAGGED, ids)
  for index, id in ipairs(ids) do
    local scores = {
      delayed = delayed[index] and tonumber(delayed[index]), ready = ready[index] and tonumber(ready[index]),
      reserved = reserved[index] and tonumber(reserved[index]),
      dead = dead[index] and tonumber(dead[index]), finished = finished[index] and tonumber(finished[index]),
    }
    local watched = expiry[index] and tonumber(expiry[index]) or nil
    check_job(id, raws[index], scores, watched, holders[index], requests[index], tagged[index], now)
  end
end

local cursor, checked = scan_pool(ARGV[3], tonumber(ARGV[4]), check)
return { cursor, checked, findings }
