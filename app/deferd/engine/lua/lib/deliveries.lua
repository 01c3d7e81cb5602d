-- The deliveries that a call on many jobs names.
-- @include record delivery bounded_reads

-- Read the jobs in ARGV from `first` on, two for each: id | nonce u48 | attempt u32 (0: any) | what else the script reads.
-- Returns all ids, the records, and the codes and lease ends of the first jobs only: as many as have a megabyte of
-- records, or one.
-- For the others, and for a job that comes again after this call has ended its delivery, a script returns nothing, and
-- its caller makes another call.
local function read_deliveries(first, now)
  local ids, raws, codes = {}, {}, {}
  for at = first, #ARGV, 2 do
    ids[#ids + 1] = ARGV[at]
  end
  local count = read_records(ids, function(index, raw) raws[index] = raw end)
  local lease_ends = redis.call('ZMSCORE', RESERVED, unpack(ids, 1, count))
  for index = 1, count do
    local id, raw = ids[index], raws[index]
    local nonce, attempt = struct.unpack('<I6I4', ARGV[first + 2 * index - 1])
    if raw and lease_ends[index] and receipt_matches(raw, nonce, attempt) then
      codes[index] = LIVE
    elseif raw or redis.call('HEXISTS', POOL, id) == 1 then  -- or its record is damaged
      codes[index] = code_for_stale(id)
    else
      codes[index] = code_for_missing(id, nonce, attempt, now)
    end
  end
  return ids, raws, codes, lease_ends
end
