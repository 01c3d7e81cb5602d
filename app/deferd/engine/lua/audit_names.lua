-- Look in one step through a shard for topics that it does not know as it should: such a topic is in no list.
-- KEYS[1] settings HASH topic -> JSON | KEYS[2] topics ZSET topic -> 0
-- ARGV[1] where to look: settings, topics, or keys, which are all keys of the store
-- ARGV[2] where the last step ended, 0 to begin | ARGV[3] about how many to look at
-- Returns { where this step ended, 0 when it was the last, { topics ... }, { keys of no topic ... },
--   { topic, JSON of those that have settings ... }, for the caller to see if they can be read }
--   A topic in `due` that has nothing is no fault: the timer passes by once more and forgets it.
-- Bound: about ARGV[3] of them; the caller sends at most 1000.
local SETTINGS, TOPICS = KEYS[1], KEYS[2]
local where, cursor, count = ARGV[1], ARGV[2], ARGV[3]
local PREFIX = string.sub(SETTINGS, 1, -1 - #'settings')
-- Of a topic that was forgotten, tombstones may be left for a while.
local KINDS = {
  pool = true, delay = true, ready = true, reserved = true, dead = true, finished = true, expiry = true,
  holders = true, cancelled = false, tally = true, requests = true,
}
local OF_SHARD = { settings = true, topics = true, due = true, lock = true, clock = true, aside = true,
  idle = true, tally = true }
local names, strays, with_settings = {}, {}, {}

local reply
if where == 'keys' then
  reply = redis.call('SCAN', cursor, 'MATCH', PREFIX .. '*', 'COUNT', count)
  for _, key in ipairs(reply[2]) do
    local rest = string.sub(key, #PREFIX + 1)
    if not OF_SHARD[rest] and not string.find(rest, '/', 1, true) and string.sub(rest, -6) ~= ':aside' then
      local topic, kind = string.match(rest, '^(.+):([^:]*)$')
      if not topic or KINDS[kind] == nil then
        strays[#strays + 1] = key
      elseif KINDS[kind] and redis.call('HEXISTS', SETTINGS, topic) == 0 then
        names[#names + 1] = topic
      end
    end
  end
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
return { reply[1], names, strays, with_settings }
