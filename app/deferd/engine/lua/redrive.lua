-- Make dead jobs ready again: due now, no attempts or snoozes, old receipts void, a new deadline; the last error
-- stays readable.
-- @inline sweep
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] a JSON object: what all sweeps have, see lib/sweep.lua, and
--     most  most jobs to redrive: of the ids, if there are any, else of those that are dead longest
--     look_at  without ids, with a reason, group or cutoff: most jobs to look at
--     drawn    with `request`: how many ids of all its steps to keep in bulk/<request>/jobs, a ZSET id -> its hash, the
--              lowest ones (engine/inspection/redriven_jobs.py)
-- ARGV[3..] ids
-- Returns: see lib/sweep.lua. Ids that are not dead, jobs that do not match, and those that cannot be read are skipped.
-- Bound: the ids; without ids `look_at` jobs or, of all dead jobs, `most`. The caller sends at most 1000. It ends early
-- when the records that it has read reach 1 MiB.
local last = last_position()
FLOWS.check_types()
local is_for_all = not OPTIONS.reason and not OPTIONS.group and not OPTIONS.cutoff
local ids, scores, more = ids_or_page(DEAD, is_for_all and OPTIONS.most or OPTIONS.look_at)

local redriven, looked = {}, 0
for index, id in ipairs(ids) do
  if #redriven == OPTIONS.most or bytes >= MOST_BYTES then
    more = 1
    break
  end
  looked = index
  local is_meant = redis.call('ZSCORE', DEAD, id) and (not OPTIONS.tag or has_tag(id))
  -- An error for one that cannot be read would strand those before it.
  local raw = is_meant and read_raw(id) or ''
  local is_read, record = pcall(read_record, raw)
  if is_read and is_of_group(raw) and has_reason(record.extra) and was_there(record.created, record.extra) then
    redriven[#redriven + 1] = id
    if not OPTIONS.samples then
      redis.call('ZREM', DEAD, id)
      void_receipts(record)
      record.attempts = 0
      record.due = now
      record.extra.d, record.extra.da, record.extra.s, record.extra.v, record.extra.sh = nil, nil, nil, nil, nil
      redis.call('HSET', POOL, id, write_record(record))
      watch_expiry(id, record)
      FLOWS.joined(record.extra)
      if record.extra.ba then BATCHES.reopened(record.extra.ba, 'dead') end
    end
  end
end
if #redriven > 0 and not OPTIONS.samples then
  append_ready(redriven, last)
  local most_events = events_to_keep()
  if most_events then
    local noted = {}
    for index, id in ipairs(redriven) do noted[index] = string.format('V%.0f %s', now, id) end
    note_events(most_events, noted)
  end
  wake_consumers()
end
if #redriven > 0 and OPTIONS.request and OPTIONS.drawn then
  local key, members = of_shard('bulk/') .. OPTIONS.request .. '/jobs', {}
  for index, id in ipairs(redriven) do
    members[2 * index - 1], members[2 * index] = tonumber(string.sub(redis.sha1hex(id), 1, 12), 16), id
  end
  redis.call('ZADD', key, unpack(members))
  redis.call('ZREMRANGEBYRANK', key, OPTIONS.drawn, -1)
  redis.call('PEXPIRE', key, OPTIONS.kept)
end
return sweep_reply(#redriven, more, ids, scores, looked, redriven, 'dead')
