-- Replace a topic's settings (existing jobs keep theirs), or pause it, which both make the topic known; or resume it.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] settings, pause, resume, or outdo: make the settings later, and the partitions as many, as
--   those of a partition, unless they are by now
-- ARGV[3] with `settings`: JSON object, as lib/topic.lua describes it, and `n`
--   partitions, which stay as they are if it has none; '' for none; with `pause`: who pauses it, '' for nobody by name;
--   with `outdo`: the revision of the partition's settings
-- ARGV[4] with `pause`: why, '' when nobody said. A second pause changes neither this nor who nor since when;
--   with `outdo`: the number of partitions in those settings
-- Returns 1 when the topic was resumed, 0 when settings or pause were stored, -1 when the topic to resume is not
--   known, -2 when it would have fewer partitions; when it would have several, -3 when it is pushed, -4 when it has limits,
--   or jobs with a group or a priority; then nothing is done.
-- Other partitions of the topic get the settings by copy_settings.lua; until that is noted, its layout ends with "!".
-- Bound: one topic; with the first limits also MOST_MARKED reserved jobs, and 1 MiB of records or one.
local MOST_MARKED = 500

-- The topic has limits now: the ends of deliveries that began before must wake pops that wait for room, as those of later
-- ones do. Above the bound only those are marked whose leases end last.
local function mark_deliveries()
  local members, ids, lease_ends = redis.call('ZRANGE', RESERVED, 0, MOST_MARKED - 1, 'REV', 'WITHSCORES'), {}, {}
  for at = 1, #members, 2 do
    ids[#ids + 1], lease_ends[#lease_ends + 1] = members[at], tonumber(members[at + 1])
  end
  if #ids == 0 then return end
  local entries, marked = redis.call('HMGET', REQUESTS, unpack(ids)), {}
  read_records(ids, function(index, raw)
    local entry = entries[index]
    if entry and string.find(entry, FLOWS.MARK) then return end
    local since = HAND_OUT.since(entry, raw, lease_ends[index])
    marked[#marked + 1] = ids[index]
    marked[#marked + 1] = HAND_OUT.entry(entry and string.match(entry, '^[^ ]*'), since, '!')
  end)
  if #marked > 0 then set_fields(REQUESTS, marked) end
end

local makes_known = ARGV[2] == 'settings' or ARGV[2] == 'pause'
if not makes_known and redis.call('HEXISTS', SETTINGS, TOPIC) == 0 then return -1 end
local now = now_ms()
local old = ensure_topic()
local old_events = old.ev
local layouts = of_shard('partitioned')
local layout = redis.pcall('HGET', layouts, TOPIC)  -- of the wrong type it must fail no topic that has no partitions
local counts = type(layout) == 'string' and string.match(layout, '^(.*) ') or '1'
local of_layout = tonumber(string.match(counts, '^%d+')) or 1
local is_replaced = of_layout > 1 and not (old.n and old.rv)
if is_replaced then
  -- Another program has replaced the settings. The jobs are where the layout says; copies have earlier revisions.
  old.n, old.rv = old.n or of_layout, now
end
local old_count = old.n or 1
local new = old
if ARGV[2] == 'settings' then
  new = ARGV[3] == '' and {} or cjson.decode(ARGV[3])
  new.p, new.ps, new.pb, new.pr = old.p, old.ps, old.pb, old.pr
  new.pu = old.pu
  local count = new.n or old_count
  if count < old_count then return -2 end
  if count > 1 and new.pu then return -3 end
  if count > 1 and (new.li or redis.call('EXISTS', topic_key('groups')) == 1) then return -4 end
  new.n = count > 1 and count or nil
elseif ARGV[2] == 'pause' then
  if new.p ~= 1 then
    new.ps, new.pb, new.pr = now, ARGV[3] ~= '' and ARGV[3] or nil, ARGV[4] ~= '' and ARGV[4] or nil
  end
  new.p = 1
elseif ARGV[2] == 'resume' then
  new.p, new.ps, new.pb, new.pr = nil, nil, nil, nil
else
  local revision, count = tonumber(ARGV[3]), tonumber(ARGV[4])
  if (old.rv or 0) >= revision and old_count >= count and not is_replaced then return 0 end
  new.n, new.rv = math.max(old_count, count), math.max(old.rv or 0, revision)
end
if new.n then new.rv = (old.rv or 0) + 1 end
redis.call('HSET', SETTINGS, TOPIC, next(new) and cjson.encode(new) or '')
if new.n then
  if old_count ~= new.n then counts = new.n .. ' ' .. counts end
  redis.call('HSET', layouts, TOPIC, counts .. ' !')
  if old_count ~= new.n then redis.call('PUBLISH', 'deferd:partitions', TOPIC) end
end
keep_events(old_events, new.ev)
if ARGV[2] == 'settings' then
  if new.li and not old.li then mark_deliveries() end
  FLOWS.limits_changed(now)
end
if not next(new) then schedule(now + FORGET_AFTER_MS) end
if ARGV[2] == 'resume' then
  wake_consumers()
  return 1
end
return 0
