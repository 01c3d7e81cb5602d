-- Add entries to the list of changes that people and keys made. An entry may join an earlier one of the same kind, so
-- that a program's calls do not displace everything else. Entries that are there already are not added twice. An entry
-- that cannot be read is removed.
-- @include clock
-- KEYS[1] activity ZSET JSON object -> number, which grows; `at`, ms, is when it was recorded. An entry that stands for
--   several calls has `times`, the sum of their `count`, and `last_at`, ms
-- ARGV[1] how long entries are kept, ms | ARGV[2] most entries to keep | ARGV[3..] JSON objects with a unique `id`;
--   `joins` 1: it joins one of the NEWEST entries, if that is at most JOINED_MS old and has `joins` and the same
--   operation, by, via, topic and outcome
-- Returns how many were added
-- Bound: ARGV[3..], the NEWEST entries, and as many old ones that are removed; the caller sends at most 50.
local ACTIVITY = KEYS[1]
local NEWEST = 10
local JOINED_MS = 600000
local SAME = { 'operation', 'by', 'via', 'topic', 'outcome' }
local kept_ms, most, now = tonumber(ARGV[1]), tonumber(ARGV[2]), now_ms()
local entries = #ARGV - 2

-- Delete first, if only nothing: a store that is out of memory refuses a script whose first write adds data.
redis.call('ZREMRANGEBYRANK', ACTIVITY, 0, -(most - entries) - 1)

-- An entry, nil for one that cannot be read; that is removed.
local function read_entry(member)
  local is_read, entry = pcall(cjson.decode, member)
  if is_read and type(entry) == 'table' and type(entry.at) == 'number' then return entry end
  redis.call('ZREM', ACTIVITY, member)
end

local expired = {}
for index, member in ipairs(redis.call('ZRANGE', ACTIVITY, 0, entries + NEWEST - 1)) do
  local entry = read_entry(member)
  if entry and entry.at > now - kept_ms then break end
  expired[index] = member
end
if #expired > 0 then redis.call('ZREM', ACTIVITY, unpack(expired)) end

local newest, last = {}, 0
local members = redis.call('ZRANGE', ACTIVITY, -NEWEST - entries, -1, 'WITHSCORES')
for at = 1, #members, 2 do
  local entry, number = read_entry(members[at]), tonumber(members[at + 1])
  if entry then
    last = number
    newest[#newest + 1] = { member = members[at], number = number, entry = entry }
  end
end

local function is_same(one, other)
  for _, name in ipairs(SAME) do
    if one[name] ~= other[name] then return false end
  end
  return true
end

local function is_there(entry)
  for _, known in ipairs(newest) do
    if known.entry.id == entry.id or known.entry.last_id == entry.id then return true end
  end
  return false
end

local function to_join(entry)
  for index = #newest, math.max(#newest - NEWEST + 1, 1), -1 do
    local known = newest[index]
    if known.entry.joins == 1 and known.entry.at > now - JOINED_MS and is_same(known.entry, entry) then return known end
  end
end

local added = 0
for index = 3, #ARGV do
  local entry = cjson.decode(ARGV[index])
  if not is_there(entry) then
    added = added + 1
    local known = entry.joins == 1 and to_join(entry)
    if known then
      redis.call('ZREM', ACTIVITY, known.member)
      entry.id, entry.last_id = known.entry.id, entry.id
      entry.at, entry.last_at = known.entry.at, now
      entry.times = (known.entry.times or 1) + 1
      if known.entry.count then entry.count = known.entry.count + (entry.count or 0) end
    else
      last = last + 1
      entry.at = now
      known = { number = last }
      newest[#newest + 1] = known
    end
    known.entry, known.member = entry, cjson.encode(entry)
    redis.call('ZADD', ACTIVITY, known.number, known.member)
  end
end
redis.call('PEXPIRE', ACTIVITY, ARGV[1])
return added
