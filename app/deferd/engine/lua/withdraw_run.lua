-- Cancel a run of a schedule that waits to be due, because the schedule has changed. One that is due runs.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id
-- Returns 1 when it was cancelled, else 0
-- Bound: one job.
local RUNS = topic_key('runs')
local id, now = ARGV[2], now_ms()
local entry = redis.call('HGET', RUNS, id)
local due = entry and redis.call('ZSCORE', DELAY, id)
if not due or tonumber(due) <= now then return 0 end
redis.call('HDEL', RUNS, id)
local name = string.match(entry, '^%S*')
local key = of_shard('schedule/') .. name
forget_earlier_run(of_shard('schedule/'), name, id)
if redis.call('EXISTS', key) == 1 then redis.call('HINCRBY', key, 'waiting', -1) end
remove_job(id, 'delayed', tonumber(due), now, false, 'withdrawn')
return 1
