-- Add entries to the list of changes that people and keys made. An entry may join an earlier one of the same kind, so
-- that a program's calls do not displace everything else; those of administrators have a set of their own, which others
-- do not fill. Entries that are there already are not added twice. An entry that cannot be read is removed.
-- @flags allow-oom
-- KEYS[1] activity ZSET JSON object -> number, which grows over both sets; `at`, ms, is when it was recorded. An entry
--   that stands for several calls has `times`, the sum of their `count`, and `last_at`, ms
-- KEYS[2] activity/admin ZSET, the same for entries with `by_admin`
-- ARGV[1] how long entries are kept, ms | ARGV[2] most entries to keep in a set | ARGV[3..] JSON objects with a unique
--   `id`; `by_admin` 1: an administrator made the change; `joins` 1: it joins one of the NEWEST entries of its set, if
--   that is at most JOINED_MS old and has `joins` and the same operation, by, via, topic and outcome
-- Returns how many were added
-- Bound: for each set ARGV[3..], the NEWEST entries, and as many old ones that are removed; the caller sends at most 50.
local NEWEST = 10
local JOINED_MS = 600000
local SAME = { 'operation', 'by', 'via', 'topic', 'outcome' }
local kept_ms, most, now = tonumber(ARGV[1]), tonumber(ARGV[2]), now_ms()
local entries, added_to = #ARGV - 2, { 0, 0 }
for index = 3, #ARGV do
  local set = cjson.decode(ARGV[index]).by_admin == 1 and 2 or 1
  added_to[set] = added_to[set] + 1
end

for set, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYRANK', key, 0, -(most - added_to[set]) - 1)
end

-- An entry, nil for one that cannot be read; that is removed.
local function read_entry(key, member)
  local is_read, entry = pcall(cjson.decode, member)
  if is_read and type(entry) == 'table' and type(entry.at) == 'number' then return entry end
  redis.call('ZREM', key, member)
end

local newest_of, last = {}, 0
for _, key in ipairs(KEYS) do
  local expired, newest = {}, {}
  for index, member in ipairs(redis.call('ZRANGE', key, 0, entries + NEWEST - 1)) do
    local entry = read_entry(key, member)
    if entry and entry.at > now - kept_ms then break end
    expired[index] = member
  end
  if #expired > 0 then redis.call('ZREM', key, unpack(expired)) end
  local members = redis.call('ZRANGE', key, -NEWEST - entries, -1, 'WITHSCORES')
  for at = 1, #members, 2 do
    local entry, number = read_entry(key, members[at]), tonumber(members[at + 1])
    if entry then
      last = math.max(last, number)
      newest[#newest + 1] = { member = members[at], number = number, entry = entry }
    end
  end
  newest_of[key] = newest
end

local function is_same(one, other)
  for _, name in ipairs(SAME) do
    if one[name] ~= other[name] then return false end
  end
  return true
end

local function is_there(newest, entry)
  for _, known in ipairs(newest) do
    if known.entry.id == entry.id or known.entry.last_id == entry.id then return true end
  end
  return false
end

local function to_join(newest, entry)
  for index = #newest, math.max(#newest - NEWEST + 1, 1), -1 do
    local known = newest[index]
    if known.entry.joins == 1 and known.entry.at > now - JOINED_MS and is_same(known.entry, entry) then return known end
  end
end

local added = 0
for index = 3, #ARGV do
  local entry = cjson.decode(ARGV[index])
  local key = KEYS[entry.by_admin == 1 and 2 or 1]
  local newest = newest_of[key]
  if not is_there(newest, entry) then
    added = added + 1
    local known = entry.joins == 1 and to_join(newest, entry)
    if known then
      redis.call('ZREM', key, known.member)
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
    redis.call('ZADD', key, known.number, known.member)
    redis.call('PEXPIRE', key, ARGV[1])
  end
end
return added
