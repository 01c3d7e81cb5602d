-- Move the end of a lease to a ttr from now.
-- @include clock topic record transitions delivery
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] nonce | ARGV[4] attempt (0: whichever delivery is live)
-- ARGV[5] ttr ms, 0 for the job's own
-- Returns { 0, lease end ms }
--   or { code }: 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 held by nobody (lib/delivery.lua)
-- Bound: one job.
local id, now = ARGV[2], now_ms()
local answer, raw = find_delivery(id, tonumber(ARGV[3]), tonumber(ARGV[4]), now)
if answer ~= LIVE then return { answer } end
local ttr = tonumber(ARGV[5])
if ttr == 0 then ttr = read_extra(raw).t or DEFAULT_TTR_MS end
redis.call('ZREM', RESERVED, id)  -- first a write that an out-of-memory store allows
redis.call('ZADD', RESERVED, now + ttr, id)
schedule(now + ttr)
return { 0, now + ttr }
