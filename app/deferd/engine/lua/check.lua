-- Which deliveries are over: their jobs were cancelled, or nobody holds them. Read-only, and reads no record of a job that
-- is held, so that it can be called each second. It does not notice that the lease has ended and another delivery has
-- the job; touch does.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2..] three for each delivery: id | nonce | attempt, below 0 for a receipt that no delivery has
-- Returns a code for each: 0 held, 1 not found, 2 no such delivery, 3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: the deliveries in ARGV, at most 1000.
local now, ids, members = now_ms(), {}, {}
for at = 2, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
  members[#ids] = string.format('%s %.0f %d', ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]))
end
local cancelled = redis.call('ZMSCORE', CANCELLED, unpack(members))
local lease_ends = redis.call('ZMSCORE', RESERVED, unpack(ids))
local codes = {}
for index, id in ipairs(ids) do
  local nonce, attempt = tonumber(ARGV[3 * index]), tonumber(ARGV[3 * index + 1])
  if cancelled[index] and tonumber(cancelled[index]) > now then
    codes[index] = WAS_CANCELLED
  elseif attempt < 0 then
    codes[index] = STALE
  elseif lease_ends[index] then
    codes[index] = LIVE
  else
    codes[index] = find_delivery(id, nonce, attempt, now)
  end
end
return codes
