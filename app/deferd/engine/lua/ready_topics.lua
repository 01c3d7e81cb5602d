-- Find the topics that match patterns, in one step through the names of a shard, and which of them have ready jobs.
-- Read-only.
-- @flags no-writes
-- KEYS[1] settings HASH topic -> JSON | KEYS[2] topics ZSET topic -> 0
-- ARGV[1], ARGV[2] the first and the last name, as ZRANGEBYLEX takes them | ARGV[3] how many names to read
-- ARGV[4] number of patterns | ARGV[5] number of patterns that a topic must match as well, 0 for none such
-- ARGV[6..] the patterns, then those that must match as well, then the topics that are left out
-- Returns { the name to continue after, '' after the last step, matching topics in this step,
--   topic with ready jobs, how many, topic, how many, ... in the order of their names }. Paused and pushed
--   topics have none, nor those of which a pop has found that limits hold all ready jobs back (lib/flows.lua). Of a topic with several partitions, each of them is listed that has ready jobs, by the patterns
--   that match the topic; the first one counts as matching.
-- Bound: the names in ARGV[3], each against the patterns; the caller sends at most 2000 names, fewer with many
-- patterns.
local SETTINGS, TOPICS = KEYS[1], KEYS[2]
local most, of_caller, of_key = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local FIRST, KEYS_AT_ONCE = 6, 100
local PREFIX = string.sub(SETTINGS, 1, -1 - #'settings')
local find, sub = string.find, string.sub

-- The pieces of a pattern between its `*`.
local function pieces_of(pattern)
  local pieces, from = {}, 1
  while true do
    local at = find(pattern, '*', from, true)
    pieces[#pieces + 1] = sub(pattern, from, at and at - 1 or -1)
    if not at then return pieces end
    from = at + 1
  end
end

-- As TopicPatterns.match, in time linear in the name: a pattern of Lua could take exponential time.
local function matches(pieces, name)
  if #pieces == 1 then return name == pieces[1] end
  local first, last = pieces[1], pieces[#pieces]
  local from, rest = #first + 1, #name - #last
  if rest < #first or sub(name, 1, #first) ~= first or sub(name, rest + 1) ~= last then return false end
  for at = 2, #pieces - 1 do
    local _, to = find(name, pieces[at], from, true)
    if pieces[at] ~= '' then
      if not to or to > rest then return false end
      from = to + 1
    end
  end
  return true
end

local function any_matches(patterns, name)
  for at = 1, #patterns do
    if matches(patterns[at], name) then return true end
  end
  return false
end

local wanted, allowed, left_out = {}, {}, {}
for at = FIRST, #ARGV do
  if at < FIRST + of_caller then
    wanted[#wanted + 1] = pieces_of(ARGV[at])
  elseif at < FIRST + of_caller + of_key then
    allowed[#allowed + 1] = pieces_of(ARGV[at])
  else
    left_out[ARGV[at]] = true
  end
end

local names = redis.call('ZRANGEBYLEX', TOPICS, ARGV[1], ARGV[2], 'LIMIT', 0, most)
local found, ready_keys, further = {}, {}, 0
for _, name in ipairs(names) do
  local at = find(name, '#', 1, true)  -- see partitions.py
  local topic = at and sub(name, 1, at - 1) or name
  if not left_out[topic] and any_matches(wanted, topic) and (of_key == 0 or any_matches(allowed, topic)) then
    found[#found + 1] = name
    ready_keys[#ready_keys + 1] = PREFIX .. name .. ':ready'
    if at then further = further + 1 end
  end
end

-- A damaged topic counts as one with ready jobs: its own poll reports the error, and the others are still found.
local function settings_of(name)
  local settings = redis.call('HGET', SETTINGS, name)
  if not settings or settings == '' then return {} end
  local is_read, decoded = pcall(cjson.decode, settings)
  return is_read and type(decoded) == 'table' and decoded or {}
end

-- How many ready jobs of a topic can be handed out, as far as it is known.
local function count_ready(name, key)
  local ready = redis.pcall('ZCARD', key)
  if type(ready) ~= 'number' then return 1 end
  if ready == 0 then return 0 end
  local settings, of_topic = settings_of(name), sub(key, 1, -1 - #'ready')
  if settings.p == 1 or settings.pu ~= nil then return 0 end
  local limited_until = tonumber(redis.pcall('ZSCORE', of_topic .. 'limited', '') or nil)
  -- Once the time of the rate has come, there may be room, also before the timer has noted that.
  if not limited_until or limited_until <= now_ms() then return ready end
  -- Plain jobs that were put since are not noted there.
  local is_read, has_room = pcall(FLOWS.has_room, settings.li, of_topic)
  return is_read and has_room and redis.call('ZCOUNT', key, FLOWS.PLAIN_FROM, '+inf') or 0
end

local reply = { #names == most and names[most] or '', #found - further }
for from = 1, #found, KEYS_AT_ONCE do
  local to = math.min(from + KEYS_AT_ONCE - 1, #found)
  if redis.call('EXISTS', unpack(ready_keys, from, to)) > 0 then  -- in an idle service, one call for all of them
    for at = from, to do
      local ready = count_ready(found[at], ready_keys[at])
      if ready > 0 then
        reply[#reply + 1] = found[at]
        reply[#reply + 1] = ready
      end
    end
  end
end
return reply
