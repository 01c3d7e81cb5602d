-- Read one job. Read-only.
-- @include topic transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id
-- Returns { state, record, score in the sorted set of its state (0 when ready), consumer or '', the record of its
--   follow-up or '' }, or nil when not found
-- Bound: one job.
local id = ARGV[2]
local record = redis.call('HGET', POOL, id)
if not record then return nil end
local state, score = state_of(id)
return { state, record, score or 0, redis.call('HGET', HOLDERS, id) or '',
  redis.call('HGET', FOLLOW, id) or '' }
