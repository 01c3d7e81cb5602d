-- Return deliveries that never reached their consumer to the head of the Ready list, in their order. No attempt is
-- counted, and their receipts are void.
-- @include clock topic events record transitions time_limits waiting
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] four for each delivery: id | nonce | attempt | request id or ''
-- Returns how many jobs were returned. Skipped: a delivery that is no longer live, and one whose request was repeated
--   or is forgotten. Another connection may have it then, even when the caller popped last: the first attempt of a
--   request may reach the store after its repetition.
-- Bound: the deliveries in ARGV, at most 1000.
now_ms()  -- before any write: without the permission for TIME nothing may change
local returned = 0
for at = #ARGV - 3, 2, -4 do
  local id, nonce, attempt = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local request_id = ARGV[at + 3]
  local delivery = request_id ~= '' and redis.call('HGET', request_key(request_id), id)
  local is_only_reply = request_id == '' or (delivery and string.match(delivery, '%d+$') == '0')
  local raw = redis.call('HGET', POOL, id)
  if raw and is_only_reply and redis.call('ZSCORE', RESERVED, id) and receipt_matches(raw, nonce, attempt) then
    local record = read_record(raw)
    void_receipts(record)
    redis.call('ZREM', RESERVED, id)
    forget_holders({ id })
    redis.call('HSET', POOL, id, write_record(record))
    prepend_ready(id)
    watch_expiry(id, record)
    note_event('B', id)
    returned = returned + 1
  end
end
if returned > 0 then wake_consumers() end
return returned
