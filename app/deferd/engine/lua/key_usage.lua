-- Count what is remembered for a key of the API beside jobs, and the bytes that it uses, one page at a time. Read-only.
-- @flags no-writes
-- KEYS[1] of_key/<key> ZSET, see lib/of_key.lua
-- ARGV[1] rank of the first entry | ARGV[2] most entries
-- Bytes that the store uses beside the texts: ARGV[3] for a call or a task, ARGV[4] for a job that a call has noted,
--   the names of which are estimated from some of them
-- Returns { rank of the next page, 0 after the last one, calls and tasks, bytes }
-- Bound: ARGV[2] entries; the caller sends at most 500.
local first, most, OVERHEAD, NOTE = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local prefix = string.match(KEYS[1], '^[^}]*}:')
local OF_NO_JOB, SAMPLES = 7, 10
local count, bytes = 0, 0
local names = redis.call('ZRANGE', KEYS[1], first, first + most - 1)
for _, name in ipairs(names) do
  local key = prefix .. name
  local fields = redis.call('HLEN', key)
  if fields > 0 then
    count = count + 1
    local spec = redis.call('HSTRLEN', key, 'spec')
    -- The name is in the ZSET, too. The notes of a call are its fields; a task has a description.
    bytes = bytes + OVERHEAD + 2 * #name + spec
    if fields > OF_NO_JOB and spec == 0 then
      local some = redis.call('HSCAN', key, 0, 'COUNT', SAMPLES)[2]
      bytes = bytes + math.ceil(fields * (NOTE + #table.concat(some) / math.max(#some / 2, 1)))
    end
  end
end
return { #names == most and first + most or 0, count, bytes }
