-- Reschedule the selected jobs of one topic. Delayed and ready ones get a new due time, others stay as they are.
-- @include clock topic record transitions paging selection
-- KEYS, ARGV: see lib/selection.lua; further in ARGV[2] one of
--     by     ms to add to the due time of each job | delay  ms from now | at  an instant, ms
-- Returns: see lib/selection.lua
-- Bound: see lib/selection.lua
-- No due time becomes earlier than now or later than MOST_AHEAD_MS ahead; `by` makes no job due earlier that is due
-- already. As in change.lua, a ready job with a later due time becomes delayed again, and one that is due now keeps its
-- place.
local MOST_AHEAD_MS = 315576000000
local last = last_position()

local NOBODY = ''

local function new_due(due)
  local wanted
  if OPTIONS.by then
    wanted = math.max(due + OPTIONS.by, math.min(due, now))
  else
    wanted = math.max(OPTIONS.delay and now + OPTIONS.delay or OPTIONS.at, now)
  end
  return math.min(wanted, now + MOST_AHEAD_MS)
end

-- The ends of ttls count from the new due times.
local function move_expiries(ids, moved_by)
  if redis.call('EXISTS', EXPIRY) == 0 then return math.huge end
  local moved, earliest = {}, math.huge
  for index, score in ipairs(redis.call('ZMSCORE', EXPIRY, unpack(ids))) do
    if score then
      local expiry = tonumber(score) + moved_by[index]
      moved[#moved + 1] = expiry
      moved[#moved + 1] = ids[index]
      earliest = math.min(earliest, expiry)
    end
  end
  if #moved > 0 then redis.call('ZADD', EXPIRY, unpack(moved)) end
  return earliest
end

return run_step(function(jobs)
  local sub, pack = string.sub, struct.pack
  local ids, moved_by, records, delayed, ready, no_longer_ready = {}, {}, {}, {}, {}, {}
  local count, waiting, earliest = 0, 0, math.huge
  for index, id in ipairs(jobs.ids) do
    local state = jobs.states[index]
    if state == 'delayed' or state == 'ready' then
      local raw, old = jobs.raws[index], jobs.dues[index]
      local due = new_due(old)
      count = count + 1
      ids[count], moved_by[count] = id, due - old
      records[2 * count - 1], records[2 * count] = id, sub(raw, 1, 6) .. pack('<I6', due) .. sub(raw, 13)
      if due > now then
        waiting = waiting + 1
        delayed[2 * waiting - 1], delayed[2 * waiting] = due, id
        if due < earliest then earliest = due end
        if state == 'ready' then no_longer_ready[#no_longer_ready + 1] = id end
      elseif state == 'delayed' then
        ready[#ready + 1] = id
      end
    end
  end
  if count == 0 then return 0, jobs.members end
  -- Delete first, if only nothing: a store that is out of memory refuses a script whose first write adds data.
  redis.call('ZREM', DELAY, NOBODY, unpack(ready))
  if #no_longer_ready > 0 then redis.call('ZREM', READY, unpack(no_longer_ready)) end
  redis.call('HSET', POOL, unpack(records))
  if waiting > 0 then redis.call('ZADD', DELAY, unpack(delayed)) end
  if #ready > 0 then
    append_ready(ready, last)
    wake_consumers()
  end
  earliest = math.min(earliest, move_expiries(ids, moved_by))
  if earliest < math.huge then schedule(earliest) end
  return count, jobs.members
end)
