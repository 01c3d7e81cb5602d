-- Count a topic's held jobs by consumer. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] most jobs
-- Returns { held jobs, those counted, then three for each consumer: name, '' for those that gave none | its jobs |
--   ms at which the first of their leases ends }; { 0, -1 } when another program has damaged the topic's keys
-- Bound: ARGV[2] jobs, those whose leases end first; the caller sends at most 1000.
local members = redis.pcall('ZRANGE', RESERVED, 0, ARGV[2] - 1, 'WITHSCORES')
if members.err then return { 0, -1 } end
local reply, ids = { redis.call('ZCARD', RESERVED), #members / 2 }, {}
if #members == 0 then return reply end
for at = 1, #members, 2 do ids[#ids + 1] = members[at] end
local holders = redis.call('EXISTS', HOLDERS) == 1 and redis.pcall('HMGET', HOLDERS, unpack(ids)) or {}
if holders.err then return { 0, -1 } end
local places = {}  -- of each consumer in the reply
for index = 1, #ids do
  local name = holders[index] or ''
  local at = places[name]
  if at then
    reply[at + 1] = reply[at + 1] + 1
  else
    at = #reply + 1
    places[name] = at
    reply[at], reply[at + 1], reply[at + 2] = name, 1, tonumber(members[2 * index])
  end
end
return reply
