-- Set how the jobs of a topic are pushed, which makes the topic known; from then on only the pusher pops them. Or remove
-- that. Processes learn of it at once, and the target counts as one that does not fail.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] JSON object for `pu` of the settings; '' to remove the push
-- ARGV[3] the secrets, separated by spaces; '' to keep those that are stored
-- ARGV[4] JSON object: everything else about the push, without line ends | ARGV[5] most pushed topics of a shard
-- The shard's key `push` has for the topic: "secrets\nJSON".
-- Returns 1 when it was created, 0 when it was replaced or removed, -1 when there is none to remove or to take the
--   secrets of, -2 when there are as many as there may be, -3 when the topic has several partitions; in the last three
--   cases nothing was changed
-- Bound: one topic.
local CREATED, REPLACED, NONE, TOO_MANY, IS_PARTITIONED = 1, 0, -1, -2, -3
local pushes, now = of_shard('push'), now_ms()
local settings = stored_settings()
local old = settings.pu and redis.call('HGET', pushes, TOPIC)
if settings.n then return IS_PARTITIONED end
local secrets = ARGV[3]
if ARGV[2] == '' or secrets == '' then
  if not old then return NONE end
  secrets = string.match(old, '^[^\n]*')
elseif not old and redis.call('HLEN', pushes) >= tonumber(ARGV[5]) then
  return TOO_MANY
end

if ARGV[2] == '' then
  redis.call('HDEL', pushes, TOPIC)
  redis.call('DEL', topic_key('push/state'), topic_key('push/rate'))
  settings.pu = nil
  redis.call('HSET', SETTINGS, TOPIC, next(settings) and cjson.encode(settings) or '')
  if not next(settings) then schedule(now + FORGET_AFTER_MS) end
else
  redis.call('HDEL', topic_key('push/state'), 'failures', 'until', 'pause', 'probe', 'error', 'at')
  ensure_topic()
  settings.pu = cjson.decode(ARGV[2])
  redis.call('HSET', SETTINGS, TOPIC, cjson.encode(settings))
  redis.call('HSET', pushes, TOPIC, secrets .. '\n' .. ARGV[4])
end
redis.call('PUBLISH', 'deferd:push', TOPIC)
wake_consumers()
return old and REPLACED or CREATED
