-- Count the jobs that were finished and the deliveries that were released in some topics in about the last hour or less,
-- by their histories. Read-only.
-- @flags no-writes
-- KEYS[1] history/topics ZSET topic -> ms | then of each topic, or of the sums over the shard: history/10s and history/5m,
--   see publish_history.lua
-- ARGV[1] how long it is looked back, ms, at least 10 minutes | ARGV[2] most topics of the shard with a history
-- Returns { ms over which was counted: that time without its first, incomplete 5 minutes, then for each topic two: how many
--   were finished, how many were released; -1 and -1 when it has no history because others have, or another program has
--   damaged KEYS[1] }
-- Bound: for each topic a record for each 5 minutes, and one; the caller sends at most 50 topics and an hour.
local MS_5_MIN, OF_5_MIN, FINISHED, RELEASED = 300000, 30, 4, 5
local now = now_ms()
local first = math.floor((now - ARGV[1]) / MS_5_MIN) + 1
local most_records = math.ceil(ARGV[1] / MS_5_MIN) + 1
local reply = { now - first * MS_5_MIN }
local histories = redis.pcall('ZCARD', KEYS[1])
local is_full = type(histories) ~= 'number' or histories >= tonumber(ARGV[2])
for at = 2, #KEYS, 2 do
  local raw = redis.call('LRANGE', KEYS[at], -1, -1)[1]
  local finished = not raw and is_full and -1 or 0
  local released = finished
  local last = raw and cmsgpack.unpack(raw)
  if last and math.floor(last[1] / OF_5_MIN) >= first then
    finished, released = last[FINISHED], last[RELEASED]
    for _, packed in ipairs(redis.call('LRANGE', KEYS[at + 1], -most_records, -1)) do
      local record = cmsgpack.unpack(packed)
      if record[1] >= first then
        finished, released = finished + record[FINISHED], released + record[RELEASED]
      end
    end
  end
  reply[#reply + 1], reply[#reply + 2] = finished, released
end
return reply
