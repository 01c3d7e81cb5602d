-- Return deliveries that nobody worked on to the head of the Ready list, in their order. No attempt is counted, and
-- their receipts are void. A job that is taken from its consumer, without a receipt, was delivered: that counts as a
-- snooze, so that its ttl is met. If it is being pushed, its request is closed.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] only jobs that this consumer holds, '' for any
-- ARGV[3..] four for each delivery: id | nonce | attempt, 0 for any | request id or ''
-- Returns a code for each: 0 returned, 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 not reserved
--   (lib/delivery.lua). 2 also when another consumer holds the job, and when the request was repeated or is forgotten:
--   another connection may have the delivery then, even when the caller popped last, because the first attempt of a
--   request may reach the store after its repetition. A caller that has the delivery for certain gives no request id.
-- Bound: the deliveries in ARGV, at most 1000.
local now = now_ms()  -- before any write: without the permission for TIME nothing may change

local function is_only_reply(id, request_id)
  if request_id == '' then return true end
  local delivery = redis.call('HGET', request_key(request_id), id)
  return delivery and string.match(delivery, '%d+$') == '0'
end

local function is_meant(id) return ARGV[2] == '' or redis.call('HGET', HOLDERS, id) == ARGV[2] end

if FLOWS.exist() then FLOWS.check_types() end
local codes, returned = {}, false
for at = #ARGV - 3, 3, -4 do
  local id, attempt = ARGV[at], tonumber(ARGV[at + 2])
  local code, raw = find_delivery(id, tonumber(ARGV[at + 1]), attempt, now)
  if code == LIVE and not (is_only_reply(id, ARGV[at + 3]) and is_meant(id)) then code = STALE end
  local is_read, record = pcall(read_record, raw)
  if code == LIVE and not is_read then code = STALE end  -- a damaged store: the other jobs are returned all the same
  if code == LIVE then
    void_receipts(record)
    if attempt == 0 then record.extra.s = (record.extra.s or 0) + 1 end
    forget_holders({ id })
    redis.call('ZREM', RESERVED, id)
    if attempt == 0 then tell_pushers(id) end
    redis.call('HSET', POOL, id, write_record(record))
    prepend_ready(id)
    if record.extra.gr then FLOWS.keep_place(stored_settings(), id, record.extra) end
    watch_expiry(id, record)
    note_event('B', id)
    returned = true
  end
  codes[(at + 1) / 4] = code
end
if returned then wake_consumers() end
return codes
