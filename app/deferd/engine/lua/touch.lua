-- Extend a lease to a ttr from now, but not beyond the job's time limit and deadline. Counts the touches.
-- @include clock topic record transitions delivery
-- @flags allow-oom
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
local lease_end = now + ttr
local has_extra = string.sub(raw, 23, 26) ~= '\0\0\0\0'
local latest = has_extra and redis.call('ZSCORE', EXPIRY, id)
if latest then lease_end = math.min(lease_end, tonumber(latest)) end
redis.call('ZREM', RESERVED, id)
redis.call('ZADD', RESERVED, lease_end, id)
schedule(lease_end)
local touches = touches_key(id)
redis.call('HINCRBY', touches, string.format('%.0f %.0f', read_nonce_and_attempts(raw)), 1)
redis.call('PEXPIRE', touches, math.max(lease_end - now, 1))
return { 0, lease_end }
