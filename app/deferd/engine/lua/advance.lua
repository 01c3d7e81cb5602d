-- Move the clock of a service started for tests forward, on all shards. Never called otherwise.
-- @flags allow-oom
-- KEYS[1..] clock STRING, one for each shard: the ms by which its clock has been moved so far
-- ARGV[1] ms by which to move it, 0: only read it | ARGV[2] most ms by which it may be moved in all
-- Returns { now ms, ms by which the clock has been moved so far }, or nil and no change when ARGV[2] would be exceeded
-- Remembered requests, which the store itself expires, expire earlier by as much. Timers are woken.
-- Bound: the shards, all remembered requests and all tags in use.
local by, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local moved = tonumber(redis.call('GET', KEYS[1]) or 0) + by
if moved > most then return nil end

local function bring_forward(key)
  local left = redis.call('PTTL', key)
  if left > by then
    redis.call('PEXPIRE', key, left - by)
  elseif left >= 0 then
    redis.call('DEL', key)
  end
end

if by > 0 then
  for _, clock in ipairs(KEYS) do
    redis.call('INCRBY', clock, ARGV[1])
    local due = string.gsub(clock, 'clock$', 'due')
    redis.call('PUBLISH', 'deferd:due', due)
  end
  local cursor = '0'
  repeat
    local found = redis.call('SCAN', cursor, 'MATCH', 'deferd:{*}:*/*', 'COUNT', 1000)
    cursor = found[1]
    for _, key in ipairs(found[2]) do
      bring_forward(key)
    end
  until cursor == '0'
end
return { now_ms(), moved }
