-- Find the topics of a shard that have jobs due later than some time from now, one page of topics at a time. Read-only.
-- @flags no-writes
-- KEYS[1] topics ZSET, see lib/topic.lua; the names of the other keys are made from the topics' names
-- ARGV[1] first topic, as for ZRANGE BYLEX | ARGV[2] most topics | ARGV[3] how far from now, ms
-- Returns { the last topic, '' after the last page, the names of the topics found ... }
-- Bound: ARGV[2] topics; the caller sends at most 250.
local prefix, from = string.sub(KEYS[1], 1, -7), now_ms() + tonumber(ARGV[3])
local names = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
local reply = { #names == tonumber(ARGV[2]) and names[#names] or '' }
for _, name in ipairs(names) do
  local _, due = unpack(redis.pcall('ZRANGE', prefix .. name .. ':delay', 0, 0, 'REV', 'WITHSCORES'))  -- it may be damaged
  if due and tonumber(due) >= from then reply[#reply + 1] = name end
end
return reply
