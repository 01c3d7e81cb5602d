-- Replace a topic's settings, which makes the topic known (existing jobs keep theirs); or pause or resume it.
-- @include clock topic
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] settings, pause, or resume
-- ARGV[3] with `settings`: JSON object, the policy keys of record.lua, `j` max_jobs and `l` durability; '' for none
-- Returns 1 when the topic was resumed, 0 when settings or pause were stored, -1 when the topic to pause or resume is
--   not known
-- Bound: one topic.
if ARGV[2] ~= 'settings' and redis.call('HEXISTS', SETTINGS, TOPIC) == 0 then return -1 end
local now = now_ms()
local old = ensure_topic()
local new = old
if ARGV[2] == 'settings' then
  new = ARGV[3] == '' and {} or cjson.decode(ARGV[3])
  new.p = old.p
elseif ARGV[2] == 'pause' then
  new.p = 1
else
  new.p = nil
end
redis.call('HDEL', SETTINGS, TOPIC)  -- delete first: a store that is out of memory allows it
redis.call('HSET', SETTINGS, TOPIC, next(new) and cjson.encode(new) or '')
if not next(new) then schedule(now + FORGET_AFTER_MS) end
if ARGV[2] == 'resume' then
  wake_consumers()
  return 1
end
return 0
