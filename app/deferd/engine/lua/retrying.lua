-- Read jobs of a topic that wait for another attempt: those that had one, among the delayed jobs in the store that are
-- due first. Read-only.
-- @flags no-writes
-- KEYS[1] delay ZSET id -> due ms | KEYS[2] pool HASH id -> record
-- ARGV[1] most jobs to look at
-- Returns { delayed jobs, how many were looked at, then for each that had an attempt two: id | record up to the body }
-- Bound: ARGV[1] jobs, the caller sends at most 250. It ends early when their records, with their bodies, reach 1 MiB.
local MOST_BYTES = 1024 * 1024
local shelved = tonumber(redis.call('HGET', string.sub(KEYS[1], 1, -6) .. 'shelf', 'jobs') or 0)
local reply, bytes = { redis.call('ZCARD', KEYS[1]) + shelved, 0 }, 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)) do
  if bytes >= MOST_BYTES then break end
  local raw = redis.call('HGET', KEYS[2], id)
  reply[2] = reply[2] + 1
  if raw and #raw >= HEADER_BYTES then
    bytes = bytes + #raw
    local _, attempts = read_nonce_and_attempts(raw)
    if attempts > 0 then
      reply[#reply + 1] = id
      reply[#reply + 1] = string.sub(raw, 1, HEADER_BYTES + struct.unpack('<I4', raw, 23))
    end
  end
end
return reply
