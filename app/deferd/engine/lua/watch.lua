-- Read one job for somebody who waits for its end or its progress, and note in its record that somebody does.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id
-- Returns what get.lua does. The record is written only when nobody has waited for the job before.
-- Bound: one job.
local id = ARGV[2]
local raw = redis.call('HGET', POOL, id)
local is_read, record = pcall(read_record, raw or '')
if is_read and not record.extra.wt then
  local state = state_of(id)
  if state ~= 'dead' and state ~= 'finished' then
    record.extra.wt = 1
    redis.call('HSET', POOL, id, write_record(record))
    ENDS.joined(record.extra)
  end
end
return scripts.get(KEYS, ARGV)
