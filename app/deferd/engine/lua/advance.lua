-- Move the clock of a service that was started for tests, on all shards at once. Never called otherwise.
-- @include clock
-- KEYS[1..] clock STRING, one of each shard: by how many ms its clock was moved so far
-- ARGV[1] by how many ms to move it on, 0: only look | ARGV[2] by how many ms it may be moved in all
-- Returns { now ms, by how many ms the clock was moved so far }, or nil when that would be too many: nothing is changed
-- What the store itself keeps for a time, the requests that pops remember, is brought forward too. Timers are woken.
-- Bound: the shards, and all remembered requests.
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
    local found = redis.call('SCAN', cursor, 'MATCH', 'deferd:{*}:*:request/*', 'COUNT', 1000)
    cursor = found[1]
    for _, key in ipairs(found[2]) do
      bring_forward(key)
    end
  until cursor == '0'
end
return { now_ms(), moved }
