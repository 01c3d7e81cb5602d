-- Make dead jobs ready again: due now, no attempts or snoozes, old receipts void, a new deadline; the last error
-- stays readable.
-- @include clock topic record transitions time_limits waiting
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] most jobs to take, longest dead first; 0: those of the ids | ARGV[3..] ids
-- Returns how many are ready now; ids that are not dead are skipped.
-- Bound: ARGV[2], or the ids; the caller sends at most 1000 of either.
local now, limit, last = now_ms(), tonumber(ARGV[2]), last_position()
local ids = {}
if limit > 0 then
  ids = redis.call('ZRANGE', DEAD, 0, limit - 1)
else
  for at = 3, #ARGV do
    ids[#ids + 1] = ARGV[at]
  end
end
local redriven = {}
for _, id in ipairs(ids) do
  if redis.call('ZREM', DEAD, id) == 1 then
    local record = read_record(redis.call('HGET', POOL, id))
    void_receipts(record)
    record.attempts = 0
    record.due = now
    record.extra.d, record.extra.s, record.extra.v = nil, nil, nil
    redis.call('HSET', POOL, id, write_record(record))
    watch_expiry(id, record)
    redriven[#redriven + 1] = id
  end
end
if #redriven > 0 then
  append_ready(redriven, last)
  wake_consumers()
end
return #redriven
