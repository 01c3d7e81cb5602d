-- Read delayed jobs that may go to the shelf, those due last first. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] from which due time on, ms | ARGV[3] how many jobs to pass over | ARGV[4] most jobs
-- Returns { number of the last batch out, how many jobs were looked at, of each that may go: id, record }
-- Bound: ARGV[4] jobs, at most 1000, and those whose records are a megabyte together.
local ids = redis.call('ZRANGE', DELAY, '+inf', ARGV[2], 'BYSCORE', 'REV', 'LIMIT', ARGV[3], ARGV[4])
local reply = { SHELF.number('out'), 0 }
if #ids == 0 then return reply end
local stays = SHELF.staying(ids)
reply[2] = read_records(ids, function(index, raw)
  local id = ids[index]
  if stays[id] then return end
  reply[#reply + 1] = id
  reply[#reply + 1] = raw
end)
return reply
