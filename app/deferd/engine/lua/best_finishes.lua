-- Find the 5 minutes in which most jobs of each topic were finished, by its history of two days. Read-only.
-- @flags no-writes
-- KEYS[1] history/topics ZSET topic -> ms | KEYS[2..] history/5m of each topic, see publish_history.lua
-- ARGV[1] most topics of the shard with a history
-- Returns for each topic two: the jobs finished in its best 5 minutes, and which 5 minutes since the epoch these are; 0 and
--   0 when none is complete; -1 and 0 when it has no history because others have, or another program has damaged KEYS[1].
--   The first 5 minutes of a history and the present ones do not count: they are not complete.
-- Bound: the records of each topic, some 580; the caller sends one topic.
local MS_5_MIN, FINISHED = 300000, 4
local present = math.floor(now_ms() / MS_5_MIN)
local histories = redis.pcall('ZCARD', KEYS[1])
local is_full = type(histories) ~= 'number' or histories >= tonumber(ARGV[1])
local reply = {}
for at = 2, #KEYS do
  local records, most, best = redis.call('LRANGE', KEYS[at], 0, -1), 0, 0
  for index = 2, #records do
    local is_read, record = pcall(cmsgpack.unpack, records[index])
    if is_read and record[1] < present and record[FINISHED] > most then most, best = record[FINISHED], record[1] end
  end
  reply[#reply + 1] = #records == 0 and is_full and -1 or most
  reply[#reply + 1] = best
end
return reply
