-- Reschedule or change a delayed or ready job.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] delay, at, or '' to keep the due time | ARGV[4] that delay or instant, ms
-- ARGV[5] extra: JSON of the keys to set, null to remove one, '' for none | ARGV[6] 1 when a new body follows | ARGV[7]
--   body
-- ARGV[8] by which window and spread the caller placed the job: "spread_ms window", '' if it did not
-- ARGV[9] the due time of a placed job, ms | ARGV[10] how much later that is than was asked for, ms
-- Returns { 0, state, record, due ms } or { code, state }: 1 not found, 2 reserved, 3 dead or finished; or
--   { 8, asked for ms, window, spread ms }: nothing is done, and the caller is to place the job
-- Bound: one job.
local ID_OF_RUN = ':%d+T%d+Z$'
local id = ARGV[2]
local now = now_ms()
local raw = redis.call('HGET', POOL, id)
if not raw then return { 1, '' } end
local state = state_of(id)
local last = last_position()
if state == 'reserved' then return { 2, state } end
if state ~= 'delayed' and state ~= 'ready' then return { 3, state } end

local record, has_new_tags, has_new_place, has_new_flow = read_record(raw), false, false, false
local old_extra = { gr = record.extra.gr, pr = record.extra.pr }
if ARGV[5] ~= '' then
  for key, value in pairs(cjson.decode(ARGV[5])) do
    if value == cjson.null then value = nil end
    record.extra[key] = value
    if key == 'g' then has_new_tags = true end
    if key == 'wi' or key == 'sp' then has_new_place = true end
  end
  if has_new_tags and record.extra.ba then record.extra.g = BATCHES.tags_with(record.extra.g or {}, record.extra.ba) end
  has_new_flow = FLOWS.of(old_extra) ~= FLOWS.of(record.extra)
end
local has_new_due, due = ARGV[3] ~= '', nil
if has_new_due then
  local when = tonumber(ARGV[4])
  due = ARGV[3] == 'delay' and now + when or math.max(when, now)
elseif has_new_place and state == 'delayed' then
  due = record.due - (record.extra.sh or 0)
end
if due and (record.extra.wi or record.extra.sp) then
  local window, spread = record.extra.wi or '', record.extra.sp or 0
  if ARGV[8] ~= string.format('%d %s', spread, window) then return { 8, due, window, spread } end
  due, record.extra.sh = math.max(tonumber(ARGV[9]), now), tonumber(ARGV[10])
  if record.extra.sh == 0 then record.extra.sh = nil end
elseif due then
  record.extra.sh = nil
end
local drops_items = ARGV[6] == '1' and record.extra.y
if drops_items then record.extra.y = nil end
if ARGV[6] == '1' then record.rest = ARGV[7] end

if has_new_flow then FLOWS.check_types() end
redis.call('ZREM', EXPIRY, id)
if drops_items == 0 then attached().drop_items({ id }) end
if due then
  record.due = due
  if has_new_due then record.extra.v = nil end
end
raw = write_record(record)
redis.call('HSET', POOL, id, raw)
ENDS.joined(record.extra)
if has_new_flow then
  if not FLOWS.are_of_one_group(old_extra, record.extra) then
    FLOWS.left(id, old_extra)
    FLOWS.joined(record.extra)
  end
  if state == 'ready' and not (due and due > now) then
    redis.call('ZREM', READY, id)
    last = append_ready({ id }, last)
    wake_consumers()
  end
end
if due then
  redis.call('ZREM', DELAY, id)
  if record.due > now then
    redis.call('ZREM', READY, id)
    redis.call('ZADD', DELAY, record.due, id)
    schedule(record.due)
    state = 'delayed'
  elseif state == 'delayed' then
    if string.find(id, ID_OF_RUN) then attached().settle_runs({ id }, 'runs') end
    append_ready({ id }, last)
    wake_consumers()
    state = 'ready'
  end
end
if has_new_tags then index_tags({ id }, record.extra.g) end
watch_expiry(id, record)
note_event('C', id, record.due, state)
if record.extra.y == 0 then raw = attached().with_items(id, raw) end
return { 0, state, raw, record.due }
