-- Find the topics of a shard that remember requests of pops by patterns. Read-only.
-- @flags no-writes
-- KEYS[1..] HASH topic -> '', one for each request; see :request/*ID in lib/topic.lua
-- Returns for each request { topic ... }
-- Bound: the requests in KEYS, at most 500, and the topics that served them, at most 1000 each.
local reply = {}
local any = redis.call('EXISTS', unpack(KEYS)) > 0  -- nearly always none: most requests are never repeated
for at, key in ipairs(KEYS) do
  local topics = {}
  if any then
    local fields = redis.call('HGETALL', key)
    for field = 1, #fields, 2 do topics[#topics + 1] = fields[field] end
  end
  reply[at] = topics
end
return reply
