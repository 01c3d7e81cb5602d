-- Note which server processes use the store, and raise the store's format once all of them know a newer one.
-- @flags allow-oom
-- KEYS[1] deferd:shards, see store/shard_guard.py | KEYS[2] the processes, a HASH
-- ARGV[1] process | ARGV[2] what others see of it, JSON; '' when it ends
-- ARGV[3] the newest format that it knows | ARGV[4] its release
-- ARGV[5] for how long a process counts that says nothing, ms | ARGV[6] for how long all must have known a format, ms;
--   -1 to raise it at once, though others do not know it
-- Returns { the guard or false, { process, when it was last seen, its newest format, what others see of it, ... } }
-- Fields: PROCESS  "ms format JSON": when it was last seen; raise  ms: since when all have known the next format.
-- A time that is far from now is from before the clock was set.
-- Bound: the processes, some hundreds; those of killed services go after ARGV[5].
local RAISE, AT_ONCE = 'raise', -1
local function is_of_type(key, name) return redis.call('TYPE', key)['ok'] == name end
if not is_of_type(KEYS[2], 'hash') then redis.call('DEL', KEYS[2]) end  -- of another program
local now = called_at_ms  -- not of a shard, whose clock tests may move
local counts_ms, grace_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[2], ARGV[1])
else
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f %s %s', now, ARGV[3], ARGV[2]))
end

local fields, found, known = redis.call('HGETALL', KEYS[2]), {}, tonumber(ARGV[3])
for at = 1, #fields, 2 do
  local seen, format, shown = string.match(fields[at + 1], '^(%d+) (%d+) (.*)$')
  if seen and math.abs(now - seen) >= counts_ms then
    redis.call('HDEL', KEYS[2], fields[at])
  elseif seen then
    known = math.min(known, tonumber(format))
    for _, value in ipairs({ fields[at], seen, format, shown }) do found[#found + 1] = value end
  end
end
if grace_ms == AT_ONCE then known = tonumber(ARGV[3]) end

local guard = is_of_type(KEYS[1], 'string') and redis.call('GET', KEYS[1])
local shards, format = string.match(guard or '', '^(%d+) format (%d+)')
if not shards or known <= tonumber(format) then
  redis.call('HDEL', KEYS[2], RAISE)
  return { guard, found }
end
local since = tonumber(redis.call('HGET', KEYS[2], RAISE)) or now
local left = math.max(0, math.min(since, now) + grace_ms - now)
if left > 0 then
  redis.call('HSET', KEYS[2], RAISE, string.format('%.0f', math.min(since, now)))
  return { guard, found }
end
redis.call('HDEL', KEYS[2], RAISE)
guard = string.format('%s format %d of %s', shards, known, ARGV[4])
redis.call('SET', KEYS[1], guard)
return { guard, found }
