-- Read one job. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id
-- Returns { state, record, score in the sorted set of its state (0 when ready), consumer or '', ms at which it was handed
--   out (0 when that is not known, or it is not reserved), the record of its follow-up or '' }, or nil when not found
-- Bound: one job.
local id = ARGV[2]
local record = redis.call('HGET', POOL, id)
if not record then return nil end
local state, score = state_of(id)
local since = state == 'reserved' and HAND_OUT.read(id, record, score) or 0
local here = attached()
local follow_up = here.follow_up_of(id)
if here.may_exist() then
  if here.is_open(record) then record = here.with_items(id, record) end
  if follow_up and here.is_open(follow_up) then follow_up = here.with_items(id, follow_up) end
end
return { state, record, score or 0, redis.call('HGET', HOLDERS, id) or '', since, follow_up or '' }
