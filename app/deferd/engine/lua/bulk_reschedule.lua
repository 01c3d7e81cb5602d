-- Reschedule the selected jobs of one topic. Delayed and ready ones get a new due time, others stay as they are.
-- @include clock topic record transitions paging selection
-- KEYS, ARGV, result, bound: see lib/selection.lua; further in ARGV[2] one of
--     by     ms to add to the due time of each job | delay  ms from now | at  an instant, ms
-- No due time is earlier than now or later than MOST_AHEAD_MS ahead. As in change.lua, a ready job with a later due time
-- becomes delayed again, and one that is due now keeps its place.
local MOST_AHEAD_MS = 315576000000
local now, last = now_ms(), last_position()

local function new_due(job)
  local due = OPTIONS.by and job.due + OPTIONS.by or OPTIONS.delay and now + OPTIONS.delay or OPTIONS.at
  return math.min(math.max(due, now), now + MOST_AHEAD_MS)
end

return run_step(function(jobs)
  local ids, left, leave, delayed, ready, records = {}, {}, { delayed = {}, ready = {} }, {}, {}, {}
  local earliest = math.huge
  for index, job in ipairs(jobs) do
    left[index] = job.id
    if job.state == 'delayed' or job.state == 'ready' then
      ids[#ids + 1] = job.id
      job.new_due = new_due(job)
      records[#records + 1] = job.id
      records[#records + 1] = string.sub(job.raw, 1, 6) .. struct.pack('<I6', job.new_due) .. string.sub(job.raw, 13)
      if job.new_due > now then
        delayed[#delayed + 1] = string.format('%.0f', job.new_due)
        delayed[#delayed + 1] = job.id
        earliest = math.min(earliest, job.new_due)
        table.insert(leave[job.state], job.id)
      elseif job.state == 'delayed' then
        ready[#ready + 1] = job.id
        table.insert(leave.delayed, job.id)
      end
    end
  end
  -- Deletions come first: a store that is out of memory refuses a script whose first write adds data.
  for state, of_state in pairs(leave) do
    if #of_state > 0 then redis.call('ZREM', STATE_SETS[state], unpack(of_state)) end
  end
  if #records > 0 then redis.call('HSET', POOL, unpack(records)) end
  if #delayed > 0 then redis.call('ZADD', DELAY, unpack(delayed)) end
  if #ready > 0 then
    append_ready(ready, last)
    wake_consumers()
  end
  if #ids > 0 and redis.call('EXISTS', EXPIRY) == 1 then
    local expiries = redis.call('ZMSCORE', EXPIRY, unpack(ids))
    local moved, index = {}, 0
    for _, job in ipairs(jobs) do
      if job.new_due then
        index = index + 1
        if expiries[index] then  -- its ttl counts from the new due time
          local expiry = tonumber(expiries[index]) - job.due + job.new_due
          moved[#moved + 1] = string.format('%.0f', expiry)
          moved[#moved + 1] = job.id
          earliest = math.min(earliest, expiry)
        end
      end
    end
    if #moved > 0 then redis.call('ZADD', EXPIRY, unpack(moved)) end
  end
  if earliest < math.huge then schedule(earliest) end
  return #ids, left
end)
