-- Replace a topic's settings (jobs already there keep theirs), or pause or resume it. Makes the topic known.
-- @include clock topic
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] settings, pause, or resume
-- ARGV[3] with `settings`: JSON object, the policy keys of record.lua, `j` max_jobs and `l` durability; '' for none
-- Returns 1 when anything changed for waiting consumers (resumed), else 0
-- Bound: one topic.
local old = settings_of_known_topic()
local new = old
if ARGV[2] == 'settings' then
  new = ARGV[3] == '' and {} or cjson.decode(ARGV[3])
  new.p = old.p
elseif ARGV[2] == 'pause' then
  new.p = 1
else
  new.p = nil
end
redis.call('HDEL', SETTINGS, TOPIC)  -- first a write that an out-of-memory store allows
redis.call('HSET', SETTINGS, TOPIC, next(new) and cjson.encode(new) or '')
if not next(new) then schedule(now_ms() + FORGET_AFTER_MS) end
if ARGV[2] == 'resume' then
  wake_consumers()
  return 1
end
return 0
