-- Which schedules have missed runs lately, for operators: `schedules/missed` of the shard, ZSET name -> ms of the last
-- one. It expires an hour after the last.
-- @include topic
local MISSED_RUNS_KEPT_MS = 3600000
local MOST_MISSED_SCHEDULES = 1000

-- Note that runs of a schedule were missed. A key of the wrong type, which
-- another program has made, is deleted: it must not stop any call.
local function note_missed_runs(name, now)
  local key = of_shard('schedules/missed')
  if type(redis.pcall('ZADD', key, now, name)) ~= 'number' then
    redis.call('DEL', key)
    redis.call('ZADD', key, now, name)
  end
  redis.call('ZREMRANGEBYRANK', key, 0, -1 - MOST_MISSED_SCHEDULES)
  redis.call('PEXPIRE', key, MISSED_RUNS_KEPT_MS)
end
