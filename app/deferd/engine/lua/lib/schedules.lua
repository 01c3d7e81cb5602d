-- Schedules: recurring jobs. Their keys, of the shard of the schedule's topic:
--   schedules      ZSET name -> 0, all schedules in the order of their names
--   schedule_due   ZSET name -> ms at which it must be advanced: its next run is due then, or could not be put; only
--                  active ones, which are neither paused nor ended
--   schedule/NAME  HASH
--     rev          incremented by each change but those of counters; a change made for another one does nothing
--     version      incremented by each PUT; if two shards have the name, the greatest is valid (then the shard's number)
--     topic | active 1, or 0
--     definition | state   JSON that only engine/schedule_store.py reads
--     rest         what follows the head of a run's job in put.lua
--     next_id      its next run | next  ms at which that is due; '' for none
--     runs | skips | missed   how many runs became so | waiting  how many wait to be due
--     last         when the last run was due, ms | last_id  the id of its job; the last one in the order of occurrences
--     late_ids     with spaces between them: runs that were due after later ones and may be live; not with `overlap` allow
--   earlier_runs   ZSET "name id" -> 0, the runs that wait besides the next one of their schedule: somebody postponed
--                  them, or they make up for missed ones. Their ids are in the order of their occurrences
--   schedules/zones  STRING the release of the time zones by which the next runs of all active schedules were derived
-- and for each topic `runs`, see transitions.lua. The member `:schedules` of `due` is the earliest in `schedule_due`.
local MEMBER_OF_SCHEDULES = ':schedules'

-- The runs of a schedule in `earlier_runs`, the first ones, at most `most`: their members there, and their ids. None when
-- another program has damaged that key: an error has no elements.
local function earlier_runs_of(earlier_runs, name, most)
  local members, ids = redis.pcall('ZRANGE', earlier_runs, '[' .. name .. ' ', '(' .. name .. '!', 'BYLEX', 'LIMIT', 0, most), {}
  for index, member in ipairs(members) do
    ids[index] = string.sub(member, #name + 2)
  end
  return members, ids
end

-- Make the timer visit the schedules of the shard when the earliest must be advanced, and wake it if that is earlier
-- than all its other work.
local function plan_visit(schedule_due, due)
  local earliest = redis.call('ZRANGE', schedule_due, 0, 0, 'WITHSCORES')[2]
  if not earliest then
    redis.call('ZREM', due, MEMBER_OF_SCHEDULES)
    return
  end
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', due, earliest, MEMBER_OF_SCHEDULES)
  if not head[2] or tonumber(earliest) < tonumber(head[2]) then redis.call('PUBLISH', 'deferd:due', due) end
end
