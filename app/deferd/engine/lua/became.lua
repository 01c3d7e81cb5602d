-- Read in which states jobs are that were in the topic at some time. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] only jobs put until this ms: one that was put later is another one with the id | ARGV[3..] ids
-- Returns { ids looked at, then three for each job that is there: id | state | the record up to the body }
-- Bound: the ids, the caller sends at most 250; it ends early when 1 MiB of records was read.
local ids, reply = {}, { 0 }
for at = 3, #ARGV do
  ids[at - 2] = ARGV[at]
end
local cutoff = tonumber(ARGV[2])
reply[1] = read_records(ids, function(index, raw)
  if struct.unpack('<I6', raw) > cutoff then return end
  reply[#reply + 1] = ids[index]
  reply[#reply + 1] = (state_of(ids[index]))
  reply[#reply + 1] = string.sub(raw, 1, HEADER_BYTES + struct.unpack('<I4', raw, 23))
end)
return reply
