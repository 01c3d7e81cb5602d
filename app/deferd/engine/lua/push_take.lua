-- Hand out ready jobs of a pushed topic to a process that pushes them, as far as the limits of the push allow: requests
-- under way in all processes, requests a second, and the circuit, which is open while the target fails.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] how long a dead job is kept, ms
-- ARGV[3] process | ARGV[4] its requests under way | ARGV[5] for how long these count, ms
-- ARGV[6] most further requests | ARGV[7] consumer
-- ARGV[8] how long a request may take at most, ms: so long no other one probes a target that failed, while the process
--   that sends it lives | ARGV[9] the longest pause of the circuit, ms
-- Returns { what pop.lua returns for one request, or '' when nothing was taken
--   for how many ms the limits or the circuit allow no further request; 0 when they do, -1 while all are under way,
--   1 when the jobs are to be a probe: one request to a target that failed | failures in a row }, or nil when the
--   topic is not pushed
-- The target's state is in push/state, a HASH of the topic; no field: none, the circuit is closed.
--   in/PROCESS  "requests until": the requests that a process has under way, and until which ms this counts
--   failures    failures in a row; error, at: the last one, and its ms
--   until       ms: the circuit is open until then; then one request probes the target | pause  ms that it was open
--   probe       the process that has such a request under way
-- push/rate is the LIST of lib/rate.lua, whose span is that of a tenth of the requests of a second, or of one request.
-- Times that are later than they can be are from before the clock was set back. They count as the latest possible.
-- Bound: as in pop.lua, and the processes, at most 1000 of them.
local BURSTS_A_SECOND = 10
local LATER = -1
local now = now_ms()
local push = stored_settings().pu
if not push then return nil end
local key, own = topic_key('push/state'), 'in/' .. ARGV[3]
local counted = tonumber(ARGV[5])
local fields, state, others = redis.call('HGETALL', key), {}, 0
for at = 1, #fields, 2 do
  local name, value = fields[at], fields[at + 1]
  state[name] = value
  if string.sub(name, 1, 3) == 'in/' and name ~= own then
    local requests, until_ms = string.match(value, '^(%d+) (%d+)$')
    if requests and tonumber(until_ms) > now then
      others = others + requests
      if until_ms - now > counted then
        redis.call('HSET', key, name, string.format('%d %.0f', requests, now + counted))
      end
    else
      state[name] = nil
      redis.call('HDEL', key, name)
    end
  end
end

local under_way = tonumber(ARGV[4])
local room, wait, probe = math.min(tonumber(ARGV[6]), push.n - others - under_way), 0, 0
if room <= 0 then wait = LATER end
if state['until'] then
  local left, longest = state['until'] - now, math.max(tonumber(ARGV[9]), state.probe and tonumber(ARGV[8]) or 0)
  if left > longest then
    left = longest
    redis.call('HSET', key, 'until', string.format('%.0f', now + left))
  end
  if left > 0 and state.probe and state.probe ~= ARGV[3] and not state['in/' .. state.probe] then left = 0 end
  if left > 0 then
    room, wait = 0, state.probe and math.min(left, counted) or left
  elseif room > 0 then
    room, probe = 1, 1
  end
end
local rate, window
if push.r then
  local burst = math.max(1, math.floor(push.r / BURSTS_A_SECOND))
  rate = { c = burst, p = math.ceil(1000 * burst / push.r) }
  window = RATE.window(topic_key('push/rate'), rate, now)
  if room > 0 then
    room = math.min(room, rate.c - window.total)
    if room <= 0 then wait = RATE.room_at(window, rate) - now end
  end
end

local popped, requests = '', 0
if room > 0 then
  popped = scripts.pop(KEYS, { TOPIC, ARGV[2], string.format('%d', -math.min(room * push.j, 1000)), '0', ARGV[7], '' })
  local jobs = (#popped[4][1] - 1) / 3
  requests = math.ceil(jobs / push.j)
end
if requests > 0 then
  if probe == 1 then redis.call('HSET', key, 'until', string.format('%.0f', now + ARGV[8]), 'probe', ARGV[3]) end
  if rate then RATE.note(topic_key('push/rate'), window, rate, requests, now) end
else
  probe = 0
end
local total = under_way + requests
local known, known_until = string.match(state[own] or '0 0', '^(%d+) (%d+)$')
if total == 0 then
  if state[own] then redis.call('HDEL', key, own) end
elseif tonumber(known) ~= total or tonumber(known_until) < now + counted / 2 then
  redis.call('HSET', key, own, string.format('%d %.0f', total, now + counted))
end
return { popped, wait, probe, tonumber(state.failures or 0) }
