-- Read a page of the changes that people and keys made, the newest first. Read-only.
-- @flags no-writes
-- KEYS[1] activity ZSET, KEYS[2] activity/admin ZSET, see record_activity.lua
-- ARGV[1] only entries with a lower number than this, '' to begin | ARGV[2] most entries
-- Returns { the time, ms, then two for each entry: its number, its JSON object }
-- Bound: two times ARGV[2] entries of at most about 4 KiB; the caller sends at most 400.
local before = ARGV[1] == '' and '+inf' or '(' .. ARGV[1]
local found = {}
for _, key in ipairs(KEYS) do
  local members = redis.call('ZRANGE', key, before, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
  for at = 1, #members, 2 do
    found[#found + 1] = { tonumber(members[at + 1]), members[at] }
  end
end
table.sort(found, function(one, other) return one[1] > other[1] end)
local reply = { now_ms() }
for index = 1, math.min(#found, tonumber(ARGV[2])) do
  reply[#reply + 1] = found[index][1]
  reply[#reply + 1] = found[index][2]
end
return reply
