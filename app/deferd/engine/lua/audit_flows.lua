-- Check one step through what gives jobs of groups and priorities their turns (lib/flows.lua).
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] flows, turns, free or limited: what to go through. ARGV[4] cursor, 0 to begin | ARGV[5] about how many elements
-- or same: check that of two flows that had the same slot one still has it. ARGV[4..] two for each: flow | another one
-- Returns { next cursor, 0 after the last step, { kind, subject, detail, ... } for each finding,
--   with `flows` { flow, slot, ... } }
-- Bound: about ARGV[5] elements; the caller sends at most 1000. A repair of a slot looks at all flows of the topic.
local part = ARGV[3]
local flows, free, turns, limited = topic_key('flows'), topic_key('flows/free'), topic_key('turns'), topic_key('limited')
local seen = {}

-- What is below the highest slot is used or free.
local function count_free()
  local used, highest = {}, -1
  local slots = redis.call('HGETALL', flows)
  for at = 2, #slots, 2 do
    local slot = tonumber(slots[at])
    if slot then
      used[slot] = true
      highest = math.max(highest, slot)
    end
  end
  redis.call('DEL', free)
  local members = {}
  for slot = 0, highest do
    if not used[slot] then members[#members + 1], members[#members + 2] = slot, slot end
    if #members > MOST_TOGETHER or slot == highest and #members > 0 then
      redis.call('ZADD', free, unpack(members))
      members = {}
    end
  end
end

local function slots() return redis.call('HLEN', flows) + redis.call('ZCARD', free) end

local function is_slot(slot) return slot and slot >= 0 and slot < FLOWS.MOST and slot == math.floor(slot) end

-- Begin again with a flow: its jobs get another place when they are checked.
local function drop(flow)
  redis.call('HDEL', flows, flow)
  redis.call('ZREM', turns, flow)
  count_free()
end

local function check_turn(flow)
  local priority, group = tonumber(string.sub(flow, 1, 1)), FLOWS.group_of(flow)
  local turn = tonumber(redis.call('ZSCORE', turns, flow) or nil)
  local is_blocked = turn and turn >= FLOWS.BAND
  local begin = is_blocked and (priority + 1) * FLOWS.BAND or -priority * FLOWS.BAND
  local state = is_blocked and FLOWS.read(group)
  if not turn then
    report('turns_wrong', flow, 'it takes no turns')
    if REPAIR then FLOWS.take_turns(flow) end
  elseif turn < begin or turn >= begin + FLOWS.BAND then
    report('turns_wrong', flow, string.format('its turn is at %.0f', turn))
    if REPAIR then
      redis.call('ZREM', turns, flow)
      FLOWS.take_turns(flow)
    end
  elseif is_blocked and not (state.flags >= FLOWS.BLOCKED and redis.call('ZSCORE', limited, group)) then
    report('turns_wrong', flow, 'it is held back, and nothing ends that')
    if REPAIR then
      if state.flags < FLOWS.BLOCKED then state.flags = state.flags + FLOWS.BLOCKED end
      FLOWS.unblock(group, state)
      FLOWS.write(state)
    end
  end
end

local check = {}

function check.flows(flow, text)
  local slot = tonumber(text)
  if not (string.find(flow, '^%d ') and flow ~= FLOWS.PLAIN and is_slot(slot)) then
    report('turns_wrong', flow, 'its jobs have place ' .. text)
    if REPAIR then drop(flow) end
    return
  end
  seen[#seen + 1], seen[#seen + 2] = flow, text
  if slot >= slots() then
    report('turns_wrong', flow, string.format('its jobs have place %.0f of %.0f', slot, slots()))
    if REPAIR then count_free() end
  elseif redis.call('ZSCORE', free, text) then
    report('turns_wrong', flow, 'the place of its jobs is free, too')
    if REPAIR then redis.call('ZREM', free, text) end
  end
  check_turn(flow)
end

function check.turns(flow)
  if flow ~= FLOWS.PLAIN and redis.call('HEXISTS', flows, flow) == 0 then
    report('turns_wrong', flow, 'its jobs have no place')
    if REPAIR then redis.call('ZREM', turns, flow) end
  elseif flow == FLOWS.PLAIN then
    check_turn(flow)
  end
end

function check.free(text, score)
  local slot = tonumber(text)
  if is_slot(slot) and slot == tonumber(score) and slot < slots() then return end
  report('turns_wrong', TOPIC, 'no free place: ' .. text)
  if REPAIR then count_free() end
end

function check.limited(group)
  if group == '' or group == FLOWS.ALL or FLOWS.read(group).flags >= FLOWS.BLOCKED then return end
  report('turns_wrong', group, 'it is not held back, and noted so')
  if REPAIR then redis.call('ZREM', limited, group) end
end

if part == 'same' then
  for at = 4, #ARGV, 2 do
    local slot = redis.call('HGET', flows, ARGV[at])
    if slot and slot == redis.call('HGET', flows, ARGV[at + 1]) then
      report('turns_wrong', ARGV[at + 1], 'its jobs have the place of those of ' .. ARGV[at])
      if REPAIR then drop(ARGV[at + 1]) end
    end
  end
  return { '0', findings, {} }
end
local key = topic_key(part == 'free' and 'flows/free' or part)
local reply = redis.call(part == 'flows' and 'HSCAN' or 'ZSCAN', key, ARGV[4], 'COUNT', ARGV[5])
for at = 1, #reply[2], 2 do check[part](reply[2][at], reply[2][at + 1]) end
return { reply[1], findings, seen }
