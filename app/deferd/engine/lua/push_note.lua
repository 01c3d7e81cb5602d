-- Note how a request to the target of a pushed topic ended: a success closes the circuit, failures in a row open it, a
-- failed probe opens it for twice as long as before.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] 1: it succeeded | ARGV[4] the error
-- ARGV[3] 1: it was a probe | 2: it was one and tells nothing: only that it has ended is noted
-- ARGV[5] how long the circuit is open at least, ms; 0 when the target did not ask for it
-- ARGV[6] after how many failures it opens | ARGV[7] its first pause, ms | ARGV[8] its longest, ms
-- Returns { failures in a row, how long the circuit is open from now, ms; 0 when it is closed }, or nil when the topic is
--   not pushed
-- Bound: one topic.
local stored = redis.call('HGET', SETTINGS, TOPIC)
if not stored or not string.find(stored, '"pu":', 1, true) then return nil end
local key, now = topic_key('push/state'), now_ms()
if ARGV[2] == '1' then
  local was_open = redis.call('HEXISTS', key, 'until') == 1
  redis.call('HDEL', key, 'failures', 'until', 'pause', 'probe', 'error', 'at')
  if was_open then redis.call('PUBLISH', 'deferd:push', TOPIC) end  -- all processes may send again
  return { 0, 0 }
end
if ARGV[3] == '2' then
  if redis.call('HDEL', key, 'probe') == 1 then redis.call('HSET', key, 'until', string.format('%.0f', now)) end
  return { 0, 0 }
end
local failures = redis.call('HINCRBY', key, 'failures', 1)
redis.call('HSET', key, 'error', ARGV[4], 'at', string.format('%.0f', now))
local open_until, pause = unpack(redis.call('HMGET', key, 'until', 'pause'))
open_until, pause = tonumber(open_until or 0), tonumber(pause or 0)
if ARGV[3] == '1' or (pause == 0 and failures >= tonumber(ARGV[6])) then
  pause = math.min(math.max(2 * pause, tonumber(ARGV[7])), tonumber(ARGV[8]))
  open_until = now + pause
  redis.call('HDEL', key, 'probe')
  redis.call('HSET', key, 'pause', pause)
end
open_until = math.max(open_until, now + ARGV[5])
if open_until > now then redis.call('HSET', key, 'until', string.format('%.0f', open_until)) end
return { failures, math.max(open_until - now, 0) }
