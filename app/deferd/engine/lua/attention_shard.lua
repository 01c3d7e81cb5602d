-- Read what may need a person in a shard as a whole: its timer, and runs of schedules that were missed. Read-only.
-- @flags no-writes
-- KEYS[1] due ZSET | KEYS[2] lock STRING, see turn.lua | KEYS[3] schedules/missed ZSET, see lib/missed_runs.lua
-- ARGV[1] runs that were missed this long ago count, ms | ARGV[2] most schedules to return
-- Returns { now ms, ms at which the timer had work first or -1, 1 when a timer holds the lock, else 0,
--   { name of a schedule, its topic, ms at which a run was last missed, missed runs in all ... }, the latest first,
--   1, or 0 when another program has damaged schedules/missed }
-- Bound: ARGV[2] schedules; the caller sends at most 200.
local now = now_ms()
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local prefix, missed = string.sub(KEYS[1], 1, -4) .. 'schedule/', {}
local since = string.format('%.0f', now - ARGV[1])
local names = redis.pcall('ZRANGE', KEYS[3], '+inf', since, 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
for at = 1, #names, 2 do
  local topic, count = unpack(redis.call('HMGET', prefix .. names[at], 'topic', 'missed'))
  if topic then
    for _, fact in ipairs({ names[at], topic, tonumber(names[at + 1]), tonumber(count) or 0 }) do
      missed[#missed + 1] = fact
    end
  end
end
return { now, first and tonumber(first) or -1, redis.call('EXISTS', KEYS[2]), missed, names.err and 0 or 1 }
