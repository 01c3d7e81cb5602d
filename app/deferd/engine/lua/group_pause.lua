-- Pause a group of a topic, which makes both known, or resume it: while it is paused none of its jobs is handed out.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] group | ARGV[3] 1: pause; 0: resume
-- Returns { 1 when it was paused before, ready jobs, reserved, delayed, due ms of the oldest of the ready ones that are the
--   first of their priority or -1, now ms }; -1 when the topic to resume is not known, -2 when the topic has several
--   partitions; then nothing is done
-- Waiting consumers are woken when a group is resumed in which a pop has found ready jobs.
-- Bound: one group, and its records that are first of a priority.
local group, pauses = ARGV[2], ARGV[3] == '1'
if not pauses and redis.call('HEXISTS', SETTINGS, TOPIC) == 0 then return -1 end
if (stored_settings().n or 1) > 1 then return -2 end
if pauses then ensure_topic() end
local state = FLOWS.read(group)
local was_paused = state.flags % 2
if pauses then
  state.flags = state.flags + FLOWS.PAUSED - was_paused
  schedule(now_ms() + FORGET_AFTER_MS)
else
  state.flags = state.flags - was_paused
  if was_paused == 1 then FLOWS.unblock(group, state) end
end
FLOWS.write(state)

local ready, oldest = 0, math.huge
for priority = 0, 9 do
  local slot = FLOWS.slot(priority .. ' ' .. group)
  if slot then
    local id, count, due = FLOWS.ready_between(FLOWS.positions(slot))
    if id then
      ready = ready + count
      if due >= 0 then oldest = math.min(oldest, due) end
    end
  end
end
local delayed = math.max(state.live - state.reserved - ready, 0)
return { was_paused, ready, state.reserved, delayed, oldest < math.huge and oldest or -1, now_ms() }
