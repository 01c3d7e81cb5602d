-- Replace a topic's settings, which makes the topic known (existing jobs keep theirs); or pause or resume it.
-- @include clock topic
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] settings, pause, or resume
-- ARGV[3] with `settings`: JSON object, the policy keys of record.lua, `j` max_jobs, `l` durability and `ev` events; ''
--   for none; with `pause`: who pauses it, '' for nobody by name
-- ARGV[4] with `pause`: why, '' when nobody said. A second pause changes neither this nor who nor since when
-- Returns 1 when the topic was resumed, 0 when settings or pause were stored, -1 when the topic to pause or resume is
--   not known
-- Bound: one topic.
if ARGV[2] ~= 'settings' and redis.call('HEXISTS', SETTINGS, TOPIC) == 0 then return -1 end
local now = now_ms()
local old = ensure_topic()
local new = old
if ARGV[2] == 'settings' then
  new = ARGV[3] == '' and {} or cjson.decode(ARGV[3])
  new.p, new.ps, new.pb, new.pr = old.p, old.ps, old.pb, old.pr
  new.pu = old.pu
elseif ARGV[2] == 'pause' then
  if new.p ~= 1 then
    new.ps, new.pb, new.pr = now, ARGV[3] ~= '' and ARGV[3] or nil, ARGV[4] ~= '' and ARGV[4] or nil
  end
  new.p = 1
else
  new.p, new.ps, new.pb, new.pr = nil, nil, nil, nil
end
redis.call('HDEL', SETTINGS, TOPIC)  -- delete first: a store that is out of memory allows it
redis.call('HSET', SETTINGS, TOPIC, next(new) and cjson.encode(new) or '')
if ARGV[2] == 'settings' and old.ev and old.ev ~= new.ev then
  local prefix = string.sub(POOL, 1, -5)
  if new.ev then
    redis.pcall('LTRIM', prefix .. 'events/log', -new.ev, -1)
  else
    redis.call('DEL', prefix .. 'events/log', prefix .. 'events/seq')
    redis.pcall('ZREM', of_shard('events/topics'), TOPIC)
  end
end
if not next(new) then schedule(now + FORGET_AFTER_MS) end
if ARGV[2] == 'resume' then
  wake_consumers()
  return 1
end
return 0
