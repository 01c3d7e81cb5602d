-- Note how far a topic is with a new number of partitions.
-- @flags allow-oom
-- KEYS: see lib/topic.lua, of the topic
-- ARGV[1] topic | ARGV[2] spread: all partitions have the settings in ARGV[3]; or forget_former: the layout in ARGV[3]
--   has former numbers, and every job is where its id belongs now
-- ARGV[3] the settings as JSON, or the layout, as they were when that was found out; if they are others now, nothing is
--   done
-- Returns 1 when it was noted, else 0
-- Bound: one topic.
local layouts = of_shard('partitioned')
local layout = redis.call('HGET', layouts, TOPIC)
if not layout then return 0 end
if ARGV[2] == 'spread' then
  if redis.call('HGET', SETTINGS, TOPIC) ~= ARGV[3] then return 0 end
  layout = string.match(layout, '^(.*) ') .. ' '
else
  if layout ~= ARGV[3] then return 0 end
  layout = string.match(layout, '^%d+') .. ' '
end
redis.call('HSET', layouts, TOPIC, layout)
return 1
