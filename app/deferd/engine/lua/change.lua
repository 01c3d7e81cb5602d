-- Reschedule or change a delayed or ready job.
-- @include clock topic tags record transitions time_limits waiting
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] delay, at, or '' to keep the due time | ARGV[4] that delay or instant, ms
-- ARGV[5] extra: JSON of the keys to set, null to remove one, '' for none | ARGV[6] 1 when a new body follows | ARGV[7]
--   body
-- Returns { 0, state, record, due ms } or { code, state }: 1 not found, 2 reserved, 3 dead or finished
-- Bound: one job.
local id = ARGV[2]
local now = now_ms()
local raw = redis.call('HGET', POOL, id)
if not raw then return { 1, '' } end
local state = state_of(id)
local last = last_position()
if state == 'reserved' then return { 2, state } end
if state ~= 'delayed' and state ~= 'ready' then return { 3, state } end

local record, has_new_tags = read_record(raw), false
if ARGV[5] ~= '' then
  for key, value in pairs(cjson.decode(ARGV[5])) do
    if value == cjson.null then value = nil end
    record.extra[key] = value
    if key == 'g' then has_new_tags = true end
  end
end
local drops_items = ARGV[6] == '1' and record.extra.y
if drops_items then record.extra.y = nil end
if ARGV[6] == '1' then record.rest = ARGV[7] end

-- Deletions come first: a store that is out of memory refuses a script whose first write adds data.
redis.call('ZREM', EXPIRY, id)
if drops_items == 0 then attached().drop_items({ id }) end
if ARGV[3] ~= '' then
  local when = tonumber(ARGV[4])
  record.due = ARGV[3] == 'delay' and now + when or math.max(when, now)
  record.extra.v = nil
  redis.call('ZREM', DELAY, id)
  if record.due > now then
    redis.call('ZREM', READY, id)
    redis.call('ZADD', DELAY, record.due, id)
    schedule(record.due)
    state = 'delayed'
  elseif state == 'delayed' then
    append_ready({ id }, last)
    wake_consumers()
    state = 'ready'
  end
end
raw = write_record(record)
redis.call('HSET', POOL, id, raw)
if has_new_tags then index_tags({ id }, record.extra.g) end
watch_expiry(id, record)
if record.extra.y == 0 then raw = attached().with_items(id, raw) end
return { 0, state, raw, record.due }
