-- Extend a lease to a ttr from now.
-- @include clock topic record transitions delivery
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] nonce | ARGV[4] attempt (0: any)
-- ARGV[5] ttr ms, 0 for the job's own
-- Returns { 0, lease end ms }
--   or { code }: 1 not found, 2 held under another receipt, 3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: one job.
local id, now = ARGV[2], now_ms()
local code, raw = find_delivery(id, tonumber(ARGV[3]), tonumber(ARGV[4]), now)
if code ~= LIVE then return { code } end
local ttr = tonumber(ARGV[5])
if ttr == 0 then ttr = read_extra(raw).t or DEFAULT_TTR_MS end
redis.call('ZREM', RESERVED, id)  -- delete first: a store that is out of memory allows it
redis.call('ZADD', RESERVED, now + ttr, id)
schedule(now + ttr)
return { 0, now + ttr }
