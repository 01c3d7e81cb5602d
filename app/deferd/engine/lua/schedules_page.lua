-- Read one page of a shard's schedules, in the order of their names. Read-only.
-- @flags no-writes
-- KEYS[1] schedules ZSET, see lib/schedules.lua
-- ARGV[1] first name and ARGV[2] last name, as for ZRANGE BYLEX | ARGV[3] most schedules | ARGV[4] 1: with their jobs
-- Returns { 1 when there may be more, else 0, for each: name, { field, value, ... } }
-- Bound: ARGV[3] schedules, and 1 MiB or one; the caller sends at most 100.
local MOST_BYTES = 1024 * 1024
local FIELDS = { 'rev', 'version', 'topic', 'active', 'definition', 'state', 'next_id', 'next', 'runs', 'skips', 'missed',
  'waiting', 'last', 'last_id' }
local prefix = string.sub(KEYS[1], 1, -2) .. '/'
local reply, bytes = { 0 }, 0
local names = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, ARGV[3])
for index, name in ipairs(names) do
  local fields = {}
  if ARGV[4] == '1' then
    fields = redis.call('HGETALL', prefix .. name)
  else
    for at, value in ipairs(redis.call('HMGET', prefix .. name, unpack(FIELDS))) do
      if value then
        fields[#fields + 1] = FIELDS[at]
        fields[#fields + 1] = value
      end
    end
  end
  reply[#reply + 1] = name
  reply[#reply + 1] = fields
  for _, value in ipairs(fields) do bytes = bytes + #value end
  if bytes >= MOST_BYTES and index < #names then
    reply[1] = 1
    return reply
  end
end
if #names == tonumber(ARGV[3]) then reply[1] = 1 end
return reply
