-- Check one step of a shard's keys for topics with data that no list of topics shows. Read-only.
-- @flags no-writes
-- KEYS[1] settings HASH topic -> JSON | KEYS[2] topics ZSET topic -> 0
-- ARGV[1] what to check: settings, topics, or keys, which are all keys of the store; or partitions, which only lists
--   those names in settings that have a "#"
-- ARGV[2] cursor, 0 to begin | ARGV[3] about how many elements to check
-- Returns { next cursor, 0 after the last step, { topics ... }, { keys of no topic ... },
--   { topic, settings JSON, ... } of those that have settings, so that the caller checks whether they can be read,
--   { keys of the tag index ... } for audit_tags.lua, { topic, id, ... } of lists of items that are of no known
--   collection, for audit_items.lua, { names ... } of schedules that are not listed, for audit_schedules.lua,
--   { names ... } of batches, for audit_batches.lua }
--   A topic in `due` without data is not reported: the timer visits it once more and forgets it.
-- Bound: about ARGV[3] elements; the caller sends at most 1000.
local SETTINGS, TOPICS = KEYS[1], KEYS[2]
local where, cursor, count = ARGV[1], ARGV[2], ARGV[3]
local PREFIX = string.sub(SETTINGS, 1, -1 - #'settings')
-- Tombstones (cancelled) may remain for a while after their topic was forgotten.
local KINDS = {
  pool = true, delay = true, ready = true, reserved = true, dead = true, finished = true, expiry = true,
  holders = true, cancelled = false, tally = true, requests = true,
  tagged = true, taken = true, follow = true, items = true, runs = true,
  groups = true, flows = true, turns = true, limited = true, ends = true,
}
local OF_SHARD = { settings = true, topics = true, due = true, lock = true, clock = true, aside = true,
  idle = true, tally = true, schedules = true, schedule_due = true, earlier_runs = true, calendars = true, activity = true, tasks = true,
  push = true, partitioned = true, batches = true }
local names, strays, with_settings, of_tags, lists, schedules, batches = {}, {}, {}, {}, {}, {}, {}

local reply
if where == 'keys' then
  reply = redis.call('SCAN', cursor, 'MATCH', PREFIX .. '*', 'COUNT', count)
  for _, key in ipairs(reply[2]) do
    local rest = string.sub(key, #PREFIX + 1)
    if string.sub(rest, 1, 4) == 'tag/' then
      of_tags[#of_tags + 1] = key
    elseif string.sub(rest, 1, 9) == 'schedule/' then
      local name = string.sub(rest, 10)
      if redis.pcall('ZSCORE', PREFIX .. 'schedules', name) == false then schedules[#schedules + 1] = name end
    elseif string.sub(rest, 1, 6) == 'batch/' then
      batches[#batches + 1] = string.sub(rest, 7)
    elseif string.find(rest, '^[^/]+:items/[^/]+$') then
      local topic, id = string.match(rest, '^(.+):items/(.+)$')
      -- An error, for a key of the wrong type, is not 0: a check of the topic reports that.
      if redis.pcall('HEXISTS', PREFIX .. topic .. ':items', id) == 0 then
        lists[#lists + 1] = topic
        lists[#lists + 1] = id
      end
    elseif not OF_SHARD[rest] and not string.find(rest, '/', 1, true) and string.sub(rest, -6) ~= ':aside' then
      local topic, kind = string.match(rest, '^(.+):([^:]*)$')
      if not topic or KINDS[kind] == nil then
        strays[#strays + 1] = key
      elseif KINDS[kind] and redis.call('HEXISTS', SETTINGS, topic) == 0 then
        names[#names + 1] = topic
      end
    end
  end
elseif where == 'partitions' then
  reply = redis.call('HSCAN', SETTINGS, cursor, 'MATCH', '*#*', 'COUNT', count)
  for at = 1, #reply[2], 2 do names[#names + 1] = reply[2][at] end
elseif where == 'settings' then
  reply = redis.call('HSCAN', SETTINGS, cursor, 'COUNT', count)
  for at = 1, #reply[2], 2 do
    local topic = reply[2][at]
    if not redis.call('ZSCORE', TOPICS, topic) then names[#names + 1] = topic end
    if reply[2][at + 1] ~= '' then
      with_settings[#with_settings + 1] = topic
      with_settings[#with_settings + 1] = reply[2][at + 1]
    end
  end
else
  reply = redis.call('ZSCAN', TOPICS, cursor, 'COUNT', count)
  for at = 1, #reply[2], 2 do
    local topic = reply[2][at]
    if redis.call('HEXISTS', SETTINGS, topic) == 0 then names[#names + 1] = topic end
  end
end
return { reply[1], names, strays, with_settings, of_tags, lists, schedules, batches }
