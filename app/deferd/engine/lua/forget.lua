-- Forget a topic that has neither jobs nor settings nor paused groups.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- Returns 1 when it is gone, else 0
-- Bound: one topic.
if redis.call('HLEN', POOL) > 0 or shelved_jobs() > 0 or redis.call('HGET', SETTINGS, TOPIC) ~= '' or redis.call('EXISTS', topic_key('groups')) == 1 then
  return 0
end
redis.call('DEL', TAKEN)  -- a purge has removed all but ids that were taken since
forget_topic()
return 1
