-- What a call on many jobs has cancelled, so that it can be put back for ten minutes (engine/undos.py). Keys of the shard:
--   undo/NAME    LIST of "partition jobs", one for each step of the undo of the call NAME; '' for one whose jobs were put
--                back
--   undo/NAME N  LIST of what its step N, from 0, has kept: the number of the topic's partitions, the ids with spaces
--                between, the key bulk/CALL without the shard (lib/selection.lua), the records; then for each run of a
--                schedule that waits to be due its id, and its entry in `runs` (lib/transitions.lua)
--   undos        HASH minute of the clock -> bytes that are kept until then
-- @include clock topic transitions
-- Its steps are kept for a minute longer, so that the first one of a call that takes long can be undone with the last.
-- A shard keeps MOST bytes in all, as kept jobs use memory for ten minutes. OF_EACH is what a server needs for a job beside
-- its id and record. A step puts back TOGETHER jobs: with tags that takes two milliseconds.
local UNDO = { FOR_MS = 600000, STEP_MS = 660000, MOST = 128 * 1024 * 1024, OF_EACH = 200, TOGETHER = 60 }

function UNDO.key(name, step) return of_shard('undo/' .. name) .. (step and ' ' .. step or '') end

-- The minute of the clock by which what expires in so many ms is gone.
function UNDO.minute(now, left_ms) return string.format('%.0f', math.ceil((now + left_ms) / 60000)) end

function UNDO.bytes(ids, raws)
  local bytes = 0
  for index, id in ipairs(ids) do bytes = bytes + UNDO.OF_EACH + #id + #raws[index] end
  return bytes
end

-- Keep jobs that are about to be cancelled, if there is room: those that wait, without a follow-up and collected items.
-- `jobs` is as in lib/selection.lua, `bulk` the call's key there, without the shard. Bound: the jobs, at most 1000.
function UNDO.keep(name, jobs, now, bulk)
  local ids, raws, runs, here, more, entries = {}, {}, {}, attached(), {}, {}
  if here.may_exist() then
    for _, key in ipairs({ here.FOLLOW, here.ITEMS }) do
      for index, value in ipairs(redis.call('HMGET', key, unpack(jobs.ids))) do more[index] = more[index] or value end
    end
    entries = redis.call('HMGET', here.RUNS, unpack(jobs.ids))
  end
  for index, id in ipairs(jobs.ids) do
    local state = jobs.states[index]
    if (state == 'delayed' or state == 'ready') and not more[index] then
      ids[#ids + 1], raws[#raws + 1] = id, jobs.raws[index]
      runs[#ids] = entries[index] or nil
    end
  end
  if #ids == 0 then return end
  local bytes, sums, kept = UNDO.bytes(ids, raws), of_shard('undos'), 0
  local found = redis.pcall('HGETALL', sums)
  if found.err then return end  -- another program has replaced the key
  for at = 1, #found, 2 do
    if tonumber(found[at]) * 60000 < now then
      redis.call('HDEL', sums, found[at])
    else
      kept = kept + tonumber(found[at + 1])
    end
  end
  if kept + bytes > UNDO.MOST then return end
  local partitions = stored_settings().n or 1
  for from = 1, #ids, UNDO.TOGETHER do
    local to = math.min(from + UNDO.TOGETHER - 1, #ids)
    local steps = redis.pcall('RPUSH', UNDO.key(name), TOPIC .. ' ' .. to - from + 1)
    if type(steps) ~= 'number' then return end  -- as above
    local key = UNDO.key(name, steps - 1)
    redis.call('DEL', key)  -- the list may have expired, and begin again, before a step of the call's first attempt has
    redis.call('RPUSH', key, partitions, table.concat(ids, ' ', from, to), bulk, unpack(raws, from, to))
    for index = from, to do
      if runs[index] then redis.call('RPUSH', key, ids[index], runs[index]) end
    end
    redis.call('PEXPIRE', key, UNDO.STEP_MS)
  end
  redis.call('PEXPIRE', UNDO.key(name), UNDO.FOR_MS)
  redis.call('HINCRBY', sums, UNDO.minute(now, UNDO.STEP_MS), bytes)
  redis.call('PEXPIRE', sums, UNDO.STEP_MS + 60000)
end
