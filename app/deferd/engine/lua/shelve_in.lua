-- Put jobs from the shelf back into the store, delayed as they were.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] number of the batch | ARGV[3] its token | ARGV[4..] two for each job: id | record
-- Returns { 0 } when the batch is late, and nothing was done; else { 1 }. A job that the store has under one of the ids
--   stays as it is
-- Bound: the jobs, at most 1000.
local number = tonumber(ARGV[2])
if SHELF.number('in') >= number then return { 0 } end
ensure_topic()
-- These fail for a key of the wrong type, before a job is stored.
redis.call('ZCARD', DELAY)
redis.call('ZCARD', EXPIRY)
local size, earliest = { jobs = 0, bytes = 0, tags = 0 }, math.huge
local delayed, tagged = {}, {}
for at = 4, #ARGV, 2 do
  local id, raw = ARGV[at], ARGV[at + 1]
  local record = read_record(raw)
  SHELF.add(size, -1, id, raw, record.extra.g and table.concat(record.extra.g, ' '))
  if redis.call('HSETNX', POOL, id, raw) == 1 then
    delayed[#delayed + 1] = string.format('%.0f', record.due)
    delayed[#delayed + 1] = id
    earliest = math.min(earliest, record.due)
    local is_read, expiry = pcall(end_of_waiting, record)  -- another program may have damaged its limits
    if is_read and expiry then
      redis.call('ZADD', EXPIRY, expiry, id)
      earliest = math.min(earliest, expiry)
    end
    if record.extra.g then tagged[id] = record.extra.g end
    ENDS.joined(record.extra)  -- a store that was emptied does not know any more that the topic has such jobs
  end
end
if #delayed > 0 then
  redis.call('ZADD', DELAY, unpack(delayed))
  schedule(earliest)
end
SHELF.note_batch('in', number, ARGV[3], size)
-- Last, and without an error when another program has replaced the key of a tag: the jobs are stored.
for id, tags in pairs(tagged) do pcall(index_tags, { id }, tags) end
return { 1 }
