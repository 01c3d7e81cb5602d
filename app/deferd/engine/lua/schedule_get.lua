-- Read one schedule. Read-only.
-- @flags no-writes
-- KEYS[1] schedule/NAME HASH, see lib/schedules.lua
-- Returns { now ms, { field, value, ... }, when its next run is due, ms, 0 when that does not wait any more,
--   id of the earlier run that is due first, '' for none, when that is due, ms }, no fields when there is no such schedule
-- Bound: one schedule, and the first 100 of its earlier runs.
local MOST_EARLIER = 100
local prefix, name = string.match(KEYS[1], '^([^}]*}:)schedule/(.*)$')
local topic, next_id = unpack(redis.call('HMGET', KEYS[1], 'topic', 'next_id'))
local due, first_id, first_due = nil, '', math.huge
if topic then
  local function due_of(id)
    local of_topic = prefix .. topic
    local score = redis.call('HEXISTS', of_topic .. ':runs', id) == 1 and redis.call('ZSCORE', of_topic .. ':delay', id)
    return score and tonumber(score)
  end

  due = next_id and next_id ~= '' and due_of(next_id)
  local _, ids = earlier_runs_of(prefix .. 'earlier_runs', name, MOST_EARLIER)
  for _, id in ipairs(ids) do
    local due_of_earlier = due_of(id)
    if due_of_earlier and due_of_earlier < first_due then first_id, first_due = id, due_of_earlier end
  end
end
return { now_ms(), redis.call('HGETALL', KEYS[1]), due or 0, first_id, first_id == '' and 0 or first_due }
