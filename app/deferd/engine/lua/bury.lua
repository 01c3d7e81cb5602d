-- Make a reserved job dead.
-- @include clock topic events tags record transitions delivery attempts_log
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] nonce | ARGV[4] attempt (0: any)
-- ARGV[5] 1 when an error text follows | ARGV[6] error | ARGV[7] how long a dead job is kept, ms
-- Returns the code: 0 buried, 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 not reserved
--   (lib/delivery.lua)
-- Bound: one job.
local id, now = ARGV[2], now_ms()
local code, raw = find_delivery(id, tonumber(ARGV[3]), tonumber(ARGV[4]), now)
if code ~= LIVE then return code end
local record = read_record(raw)
record.attempts = record.attempts + 1
log_attempt(record, now, 'buried', redis.call('HGET', HOLDERS, id), ARGV[6])
if ARGV[5] == '1' then record.extra.e = ARGV[6] end
redis.call('ZREM', RESERVED, id)
forget_holders({ id })
bury_job(id, record, 'buried', now, tonumber(ARGV[7]))
return LIVE
