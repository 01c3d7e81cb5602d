-- Read one topic. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- Returns { settings JSON or '', delayed, ready, reserved, dead, finished,
--   due ms of the oldest ready job or -1 (FLOWS.oldest_due), due ms of the next delayed job in the store or -1, now ms, follow-ups, jobs and follow-ups that collect items,
--   how many of the delayed jobs are on the shelf,
--   the fields and values of push/state, none unless the topic is pushed }, or nil when the
--   topic is not known
-- Bound: one topic, and FLOWS.MOST_LOOKED_AT heads of flows.
local settings = redis.call('HGET', SETTINGS, TOPIC)
if not settings then return nil end
local is_pushed = string.find(settings, '"pu":', 1, true)
local oldest = FLOWS.oldest_due(topic_key(''), FLOWS.MOST_LOOKED_AT)
local next_due = redis.call('ZRANGE', DELAY, 0, 0, 'WITHSCORES')[2]
local here, follow_ups, collections = attached(), 0, 0
if here.may_exist() then follow_ups, collections = redis.call('HLEN', here.FOLLOW), redis.call('HLEN', here.ITEMS) end
local shelved = shelved_jobs()
return {
  settings, redis.call('ZCARD', DELAY) + shelved, redis.call('ZCARD', READY), redis.call('ZCARD', RESERVED), redis.call('ZCARD', DEAD),
  redis.call('ZCARD', FINISHED), oldest, next_due and tonumber(next_due) or -1, now_ms(),
  follow_ups, collections, shelved, is_pushed and redis.call('HGETALL', topic_key('push/state')) or {},
}
