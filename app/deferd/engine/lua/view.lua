-- Look at one topic, changing nothing.
-- @include clock topic places
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- Returns { settings JSON or '', delayed, ready, reserved, dead, finished, due ms of the oldest ready job or -1,
--   due ms of the next delayed job or -1, now ms }, or nil when there is no such topic
-- Bound: at most 100 left-over ids of the Ready list are passed over to find the oldest ready job.
local settings = redis.call('HGET', SETTINGS, TOPIC)
if not settings then return nil end
local oldest = -1
for _, id in ipairs(redis.call('LRANGE', READY, 0, 100)) do
  if is_ready(id) then
    local _, due = struct.unpack('<I6I6', redis.call('HGET', POOL, id))
    oldest = due
    break
  end
end
local next_due = redis.call('ZRANGE', DELAY, 0, 0, 'WITHSCORES')[2]
return {
  settings, redis.call('ZCARD', DELAY), count_ready(), redis.call('ZCARD', RESERVED), redis.call('ZCARD', DEAD),
  redis.call('ZCARD', FINISHED), oldest, next_due and tonumber(next_due) or -1, now_ms(),
}
