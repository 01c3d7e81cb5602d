-- Read a page of the changes that people and keys made, the newest first. Read-only.
-- @include clock
-- KEYS[1] activity ZSET, see record_activity.lua
-- ARGV[1] only entries with a lower number than this, '' to begin | ARGV[2] most entries
-- Returns { the time, ms, then two for each entry: its number, its JSON object }
-- Bound: ARGV[2] entries of about 1 KiB; the caller sends at most 400.
local before = ARGV[1] == '' and '+inf' or '(' .. ARGV[1]
local found = redis.call('ZRANGE', KEYS[1], before, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
local reply = { now_ms() }
for at = 1, #found, 2 do
  reply[#reply + 1] = tonumber(found[at + 1])
  reply[#reply + 1] = found[at]
end
return reply
