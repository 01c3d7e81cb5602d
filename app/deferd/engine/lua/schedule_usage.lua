-- Count the schedules of a shard by topic, and the bytes that they use, one page at a time. Read-only.
-- @flags no-writes
-- KEYS[1] schedules ZSET, see lib/schedules.lua
-- ARGV[1] first name, as for ZRANGE BYLEX | ARGV[2] most schedules | ARGV[3] bytes that the store uses for a schedule
--   beside the texts
-- Returns { the last name, '' after the last page, then three for each topic: topic, schedules, bytes }
-- Bound: ARGV[2] schedules; the caller sends at most 250.
local prefix = string.sub(KEYS[1], 1, -2) .. '/'
local counts, bytes = {}, {}
local names = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
for _, name in ipairs(names) do
  local key = prefix .. name
  local topic = redis.call('HGET', key, 'topic')
  if topic then
    local texts = 3 * #name + #topic  -- the name is in two sorted sets, too
    for _, field in ipairs({ 'definition', 'rest', 'state' }) do
      texts = texts + redis.call('HSTRLEN', key, field)
    end
    counts[topic] = (counts[topic] or 0) + 1
    bytes[topic] = (bytes[topic] or 0) + texts + ARGV[3]
  end
end
local reply = { #names == tonumber(ARGV[2]) and names[#names] or '' }
for topic, count in pairs(counts) do
  reply[#reply + 1] = topic
  reply[#reply + 1] = count
  reply[#reply + 1] = bytes[topic]
end
return reply
