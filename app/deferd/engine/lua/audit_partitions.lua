-- Check that the layout of a topic's partitions can be read and agrees with its settings, both of one instant.
-- @inline findings
-- @flags allow-oom
-- KEYS: see lib/topic.lua, of the topic; the last of KEYS: partitioned HASH topic -> layout
-- ARGV[1] topic
-- ARGV[2] 1: repair what is found; 2: write both again in any case; 0: change nothing
-- ARGV[3] most partitions of a topic | ARGV[4] the settings get a later revision than this, if they are written
-- Returns { settings, layout, { kind, subject, detail } of a finding }; settings and layout are '' if there are none or
--   they cannot be read. After a repair they are as repaired.
--   As the former numbers of partitions are not known, a layout that is written has all smaller ones as such. They are
--   forgotten when it is seen that no job needs them (engine/partition_store.py).
-- Bound: one topic.
local LAYOUTS, MOST = KEYS[#KEYS], tonumber(ARGV[3])

-- The numbers of partitions that a layout names, or nil if it cannot be read.
local function read(layout)
  if not (string.find(layout, '^%d[%d ]* !?$') and #layout < 1000) then return nil end
  local counts = {}
  for number in string.gmatch(layout, '%d+') do
    number = tonumber(number)
    if number < 1 or number > (counts[#counts] and counts[#counts] - 1 or MOST) then return nil end
    counts[#counts + 1] = number
  end
  return counts
end

local kind = redis.call('TYPE', LAYOUTS).ok
local layout = kind == 'hash' and redis.call('HGET', LAYOUTS, TOPIC) or ''
local text = redis.call('HGET', SETTINGS, TOPIC) or ''
local is_readable, settings = true, {}
if text ~= '' then is_readable, settings = pcall(cjson.decode, text) end
if not is_readable or type(settings) ~= 'table' then return { '', read(layout) and layout or '', findings } end

local of_settings = type(settings.n) == 'number' and settings.n or 1
local counts = read(layout)
local of_layout = counts and counts[1] or 1
local is_wrong = of_settings ~= of_layout or (layout ~= '' and not counts)
if is_wrong then
  local said = layout == '' and 'nothing' or "'" .. layout .. "'"
  report('partitions_wrong', TOPIC, string.format('%.0f by its settings, %s in partitioned', of_settings, said))
end
local count = math.max(of_settings, of_layout)
if (ARGV[2] == '2' and count > 1) or (ARGV[2] == '1' and is_wrong) then
  local all = {}
  for number = count, 1, -1 do all[#all + 1] = string.format('%.0f', number) end
  layout = table.concat(all, ' ') .. ' !'
  if count > 1 then
    redis.call('HSET', LAYOUTS, TOPIC, layout)
    ensure_topic()
    local revision = type(settings.rv) == 'number' and settings.rv or 0
    settings.n, settings.rv = count, math.max(revision, tonumber(ARGV[4])) + 1
    text = cjson.encode(settings)
    redis.call('HSET', SETTINGS, TOPIC, text)
  else
    redis.call('HDEL', LAYOUTS, TOPIC)
    layout = ''
  end
  redis.call('PUBLISH', 'deferd:partitions', TOPIC)
elseif not counts then
  layout = ''
end
return { text, layout, findings }
