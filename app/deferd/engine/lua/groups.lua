-- Read how many ready jobs the flows of a topic have, in one step through its Ready list. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] the slot to begin at, 0 in the first step | ARGV[3] most flows to look at
-- Returns { the slot to continue at, -1 after the last step, now ms, for each flow: its group or '', ready jobs, due ms of
--   the first one, -1 when its record cannot be read, ... }
--   Jobs with neither group nor priority come last.
-- Bound: ARGV[3] flows, the caller sends at most 250, and 1 MiB of records or one.
local slot, bytes = tonumber(ARGV[2]), 0
local reply = { -1, now_ms() }

local function add(from, to)
  local id, ready, due, raw = FLOWS.ready_between(from, to)
  if not id then return end
  bytes = bytes + #raw
  for _, value in ipairs({ FLOWS.group_of(FLOWS.of_raw(raw)), ready, due }) do reply[#reply + 1] = value end
end

for _ = 1, tonumber(ARGV[3]) do
  local first = FLOWS.positions(slot)
  local position = redis.call('ZRANGE', READY, first, '(' .. string.format('%.0f', FLOWS.PLAIN_FROM), 'BYSCORE',
    'LIMIT', 0, 1, 'WITHSCORES')[2]
  if not position then
    add(FLOWS.PLAIN_FROM, '+inf')
    return reply
  end
  slot = math.floor((tonumber(position) - FLOWS.FIRST) / FLOWS.WIDTH)
  add(FLOWS.positions(slot))
  slot = slot + 1
  if bytes >= FLOWS.MOST_BYTES then break end
end
reply[1] = slot
return reply
