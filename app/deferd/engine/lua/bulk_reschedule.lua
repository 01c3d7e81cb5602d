-- Reschedule the selected jobs of one topic. Delayed and ready ones get a new due time, others stay as they are.
-- @inline selection
-- @flags allow-oom
-- KEYS, ARGV: see lib/selection.lua; further in ARGV[2] one of
--     by     ms to add to the due time of each job | delay  ms from now | at  an instant, ms
--   and maybe
--     spread  ms: each job is due later by a part of this, from 0 to all of it, that depends on its id
-- Returns: see lib/selection.lua
-- Bound: see lib/selection.lua
-- No due time becomes earlier than now, and `by` makes no job due earlier that is due already. A job that `by` would move
-- to more than MOST_AHEAD_MS ahead stays as it is, and is not counted as changed: a run of a schedule may be further ahead
-- already, and would otherwise move back. As in change.lua, a ready job with a later due time becomes delayed again, and one that is due now keeps its
-- place; ttls and deadlines count from the new due times. Windows and spreads do not move these.
local MOST_AHEAD_MS = 315576000000
local last = last_position()

-- By how much later a job is due because of the spread.
local function spread_of(id)
  return OPTIONS.spread and tonumber(string.sub(redis.sha1hex(id), 1, 12), 16) % (OPTIONS.spread + 1) or 0
end

-- The new due time of a job; nil if the job stays as it is.
local function new_due(due, id)
  if not OPTIONS.by then
    return math.max(OPTIONS.delay and now + OPTIONS.delay or OPTIONS.at, now) + spread_of(id)
  end
  local wanted = math.max(due + OPTIONS.by, math.min(due, now)) + spread_of(id)
  if wanted > due and wanted > now + MOST_AHEAD_MS then return nil end
  return wanted
end

local function with_due(raw, due) return string.sub(raw, 1, 6) .. struct.pack('<I6', due) .. string.sub(raw, 13) end

-- The record with a new due time, from which its ttl and deadline count now, and when it becomes dead if it waits until
-- then. Raises an error for a record that cannot be read.
local function with_due_and_limits(raw, due)
  local record = read_record(raw)
  record.due, record.extra.v, record.extra.sh = due, nil, nil
  return write_record(record), (end_of_waiting(record))
end

-- Whether the record says from when its deadline counts, or how far it was moved; it may also be text in a tag.
local function may_have_moved(raw)
  if string.sub(raw, 23, 26) == NO_EXTRA then return false end
  local extra = string.sub(raw, 27, 26 + struct.unpack('<I4', raw, 23))
  return string.find(extra, '"v":', 1, true) or string.find(extra, '"sh":', 1, true)
end

return run_step(function(jobs)
  local records, delayed, ready, no_longer_ready, moved = {}, {}, {}, {}, {}
  local count, waiting, earliest, dues = 0, 0, math.huge, {}
  local expiries = redis.call('EXISTS', EXPIRY) == 1 and redis.call('ZMSCORE', EXPIRY, unpack(jobs.ids)) or {}
  for index, id in ipairs(jobs.ids) do
    local state = jobs.states[index]
    local raw, due = jobs.raws[index], (state == 'delayed' or state == 'ready') and new_due(jobs.dues[index], id)
    if due then
      dues[index] = due
      count = count + 1
      local is_read, record, expiry = false, nil, nil
      if expiries[index] or may_have_moved(raw) then is_read, record, expiry = pcall(with_due_and_limits, raw, due) end
      if is_read and expiry then
        moved[#moved + 1], moved[#moved + 2] = expiry, id
        earliest = math.min(earliest, expiry)
      end
      records[2 * count - 1], records[2 * count] = id, is_read and record or with_due(raw, due)
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
  if #ready > 0 then redis.call('ZREM', DELAY, unpack(ready)) end
  if #no_longer_ready > 0 then redis.call('ZREM', READY, unpack(no_longer_ready)) end
  redis.call('HSET', POOL, unpack(records))
  if waiting > 0 then redis.call('ZADD', DELAY, unpack(delayed)) end
  if #ready > 0 then
    attached().settle_runs(ready, 'runs')
    append_ready(ready, last)
    wake_consumers()
  end
  if #moved > 0 then redis.call('ZADD', EXPIRY, unpack(moved)) end
  local most_events = events_to_keep()
  if most_events then
    local noted = {}
    for index, id in ipairs(jobs.ids) do
      local due = dues[index]
      if due then
        noted[#noted + 1] = string.format('C%.0f %s %.0f %s', now, id, due, due > now and 'delayed' or 'ready')
      end
    end
    note_events(most_events, noted)
  end
  if earliest < math.huge then schedule(earliest) end
  return count, jobs.members
end)
