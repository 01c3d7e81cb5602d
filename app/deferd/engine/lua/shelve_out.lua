-- Remove jobs from the store that the shelf has written to its files, if they are as they were when they were read.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] number of the batch | ARGV[3] its token | ARGV[4] the oldest generation of ids that
--   do not leave the store | ARGV[5..] two for each job: id | record
-- Returns { 0 } when the batch is late, and nothing was done; else { 1, the number that left, the ids that stayed ... }:
--   they have changed, are not delayed any more, or have become of a kind that stays
-- Bound: the jobs, at most 1000.
local number = tonumber(ARGV[2])
if SHELF.number('out') >= number then return { 0 } end
local ids = {}
for at = 5, #ARGV, 2 do ids[#ids + 1] = ARGV[at] end
local records, dues, stays = redis.call('HMGET', POOL, unpack(ids)), redis.call('ZMSCORE', DELAY, unpack(ids)), SHELF.staying(ids)
local left, kept, size = {}, {}, { jobs = 0, bytes = 0, tags = 0 }
local tags = redis.call('HMGET', TAGGED, unpack(ids))
for index, id in ipairs(ids) do
  if dues[index] and records[index] == ARGV[2 * index + 4] and not stays[id] then
    left[#left + 1] = id
    SHELF.add(size, 1, id, records[index], tags[index])
  else
    kept[#kept + 1] = id
  end
end
-- What may fail, when another program has replaced a key, comes before the jobs are removed. Then they stay.
if #left > 0 then index_tags(left) end
SHELF.note_batch('out', number, ARGV[3], size, table.concat(kept, ' '), ARGV[4])
if #left > 0 then
  redis.call('ZREM', DELAY, unpack(left))
  redis.call('ZREM', EXPIRY, unpack(left))
  redis.call('HDEL', POOL, unpack(left))
end
return { 1, #left, unpack(kept) }
