-- Check some batches of a shard: each is listed, and has not counted more ends than jobs.
-- @inline findings
-- @flags allow-oom
-- KEYS[1] batches ZSET, see lib/batches.lua
-- ARGV[1] 1: repair what is found, in the same call | ARGV[2..] names of batches that have a key
-- Returns { kind, subject, detail, ... } for each finding
-- Bound: the names; the caller sends at most 1000.
local REPAIR, COUNTS = ARGV[1] == '1', { 'finished', 'dead', 'cancelled' }
local prefix = string.sub(KEYS[1], 1, -3) .. '/'
for at = 2, #ARGV do
  local name = ARGV[at]
  local key = prefix .. name
  local fields = redis.pcall('HMGET', key, 'joined', unpack(COUNTS))
  if not fields.err then
    local ended, shown = 0, {}
    for index, count in ipairs(COUNTS) do
      local number = tonumber(fields[index + 1] or 0)
      shown[index] = string.format('%d %s', number, count)
      if number < 0 and REPAIR then redis.call('HSET', key, count, 0) end
      if number < 0 then ended = math.huge end
      ended = ended + number
    end
    local joined = tonumber(fields[1] or 0)
    if ended > joined then
      report('batch_wrong', name, string.format('%d jobs, but %s', joined, table.concat(shown, ', ')))
      if REPAIR and ended < math.huge then redis.call('HSET', key, 'joined', ended) end
    end
    if redis.pcall('ZSCORE', KEYS[1], name) == false then
      report('batch_wrong', name, 'not in batches')
      if REPAIR then redis.call('ZADD', KEYS[1], 0, name) end
    end
  end
end
return findings
