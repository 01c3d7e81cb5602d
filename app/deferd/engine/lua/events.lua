-- Read the events of topics, each from a position on. Read-only.
-- @flags no-writes
-- KEYS[2n+1] events/seq HASH | KEYS[2n+2] events/log LIST: two for each topic, all of one shard, see lib/events.lua
-- ARGV[1] most events to return together | ARGV[2n+2], ARGV[2n+3] two for each topic: the position
--   since, modulo 65536 | number of the last event that was read; or
--   -1 | 0: from the oldest event; or -2 | 0: only from now on; or -3 | n: the last n events; or -4 | 0: from the first
--   event that there ever was
-- Returns for each topic { since, modulo 65536 | number of its last event | number of the first event returned | how many
--   are missing before that, -1 for an unknown number | events ... }; empty when it has no events,
--   or when another program has damaged its keys
-- Bound: the topics, and ARGV[1] events; the caller sends at most 250 and 1000.
local FROM_OLDEST, FROM_NOW, LAST, FROM_FIRST = -1, -2, -3, -4
local room = tonumber(ARGV[1])

local function read_topic(seq_key, log_key, since, seq)
  local last, first_at = unpack(redis.call('HMGET', seq_key, 'seq', 'since'))
  if not last then return {} end
  last, first_at = tonumber(last), (tonumber(first_at) or 0) % 65536
  if since == first_at and seq == last then return { first_at, last, last + 1, 0 } end
  local length, missing = redis.call('LLEN', log_key), 0
  local wanted  -- how many of the last events
  if since == FROM_OLDEST then
    wanted = length
  elseif since == FROM_NOW then
    wanted = 0
  elseif since == FROM_FIRST then
    wanted, missing = length, last - length
  elseif since == LAST then
    wanted = math.min(seq, length)
  elseif since ~= first_at then
    wanted, missing = length, -1
  elseif seq > last then  -- the store has lost events that it had
    wanted, missing = 0, -1
  else
    wanted = math.min(last - seq, length)
    missing = last - seq - wanted
  end
  local count = math.min(wanted, room)
  local reply = { first_at, last, last - wanted + 1, missing }
  if count > 0 then
    room = room - count
    local from = length - wanted
    for index, event in ipairs(redis.call('LRANGE', log_key, from, from + count - 1)) do reply[4 + index] = event end
  end
  return reply
end

local replies = {}
for topic = 1, #KEYS / 2 do
  local since, seq = tonumber(ARGV[2 * topic]), tonumber(ARGV[2 * topic + 1])
  local is_read, reply = pcall(read_topic, KEYS[2 * topic - 1], KEYS[2 * topic], since, seq)
  replies[topic] = is_read and reply or {}
end
return replies
