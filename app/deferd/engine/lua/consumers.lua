-- Read the consumers that processes have published, see publish_consumers.lua. Read-only.
-- @flags no-writes
-- KEYS[1] reports HASH process -> JSON | KEYS[2] reported ZSET process -> ms | KEYS[3] topics ZSET topic -> ms
-- ARGV[1] most reports | ARGV[2..] topics
-- Returns { now ms, { ms of the report, JSON, ... }, { for each topic the ms at which a consumer was last seen, or 0 }, 1,
--   or 0 when another program has damaged the keys }
-- Bound: ARGV[1] reports of at most some 100 kB, the latest, and the topics; the caller sends at most 200, and
-- 500.
local REPORTS, REPORTED, SEEN = KEYS[1], KEYS[2], KEYS[3]
local reports, seen = {}, {}
local is_readable = 1

local function readable(reply)
  if type(reply) ~= 'table' or not reply.err then return reply end
  is_readable = 0
end

local found = readable(redis.pcall('ZRANGE', REPORTED, -ARGV[1], -1, 'WITHSCORES')) or {}
for at = 1, #found, 2 do
  local report = readable(redis.pcall('HGET', REPORTS, found[at]))
  if report then
    reports[#reports + 1] = tonumber(found[at + 1])
    reports[#reports + 1] = report
  end
end
for at = 2, #ARGV do
  local last = readable(redis.pcall('ZSCORE', SEEN, ARGV[at]))
  seen[at - 1] = last and tonumber(last) or 0
end
return { now_ms(), reports, seen, is_readable }
