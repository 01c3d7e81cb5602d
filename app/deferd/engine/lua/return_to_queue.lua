-- Return deliveries that never reached their consumer to the head of the Ready list, in their order. No attempt is
-- counted, and their receipts are void.
-- @include clock topic record transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] five for each delivery: id | nonce | attempt | request id or '' | how often the request had
--   been repeated by then
-- Returns how many jobs were returned. Skipped: a delivery that is no longer live, and one whose request has been
--   repeated since, because then another connection has it.
-- Bound: the deliveries in ARGV, at most 1000.
local returned = 0
for at = #ARGV - 4, 2, -5 do
  local id, nonce, attempt = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local delivery = ARGV[at + 3] ~= '' and redis.call('HGET', request_key(ARGV[at + 3]), id)
  local was_repeated = delivery and string.match(delivery, '%d+$') ~= ARGV[at + 4]
  local raw = redis.call('HGET', POOL, id)
  if raw and not was_repeated and redis.call('ZSCORE', RESERVED, id) and receipt_matches(raw, nonce, attempt) then
    local record = read_record(raw)
    void_receipts(record)
    redis.call('ZREM', RESERVED, id)
    forget_holders({ id })
    redis.call('HSET', POOL, id, write_record(record))
    prepend_ready(id)
    watch_expiry(id, record)
    returned = returned + 1
  end
end
if returned > 0 then wake_consumers() end
return returned
