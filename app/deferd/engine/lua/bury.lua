-- Make reserved jobs dead.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] how long a dead job is kept, ms
-- ARGV[3..] two for each job: id | nonce u48 | attempt u32 (0: any) | u8, 1 when an error text follows | error
-- Returns a code for each of the first jobs (lib/deliveries.lua): 0 buried, 1 not found, 2 held under another receipt,
--   3 cancelled, 4 to 7 not reserved (lib/delivery.lua)
-- Bound: the jobs in ARGV, at most 100, of which it reads 1 MiB.
local HAS_ERROR_AT = 11
local now = now_ms()
local ids, raws, codes = read_deliveries(3, now)
local consumers = redis.call('HMGET', HOLDERS, unpack(ids, 1, #codes))

local replies, is_buried, buried, records = {}, {}, {}, {}
for index, code in ipairs(codes) do
  local id = ids[index]
  if is_buried[id] then break end
  replies[index] = code
  if code == LIVE then
    local is_read, record = pcall(read_record, raws[index])
    if is_read then
      local has_error, at = struct.unpack('B', ARGV[2 * index + 2], HAS_ERROR_AT)
      local error = string.sub(ARGV[2 * index + 2], at)
      record.attempts = record.attempts + 1
      log_attempt(record, now, 'buried', consumers[index], error)
      if has_error == 1 then record.extra.e = error end
      is_buried[id] = true
      buried[#buried + 1] = id
      records[#records + 1] = record
    else  -- a damaged store: the other jobs are buried all the same
      replies[index] = STALE
    end
  end
end
if #buried > 0 then
  forget_holders(buried)
  redis.call('ZREM', RESERVED, unpack(buried))
end
for index, id in ipairs(buried) do
  bury_job(id, records[index], 'buried', now, tonumber(ARGV[2]))
end
return replies
