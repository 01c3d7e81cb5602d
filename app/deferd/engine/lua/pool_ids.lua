-- Read one step through the ids of a Job Pool. Read-only.
-- @flags no-writes
-- KEYS[1] pool HASH id -> record
-- ARGV[1] cursor, 0 to begin | ARGV[2] about how many ids to read
-- Returns { next cursor, 0 after the last step, ids ... }
--   An id may be returned twice.
-- Bound: about ARGV[2] ids (the caller sends at most 1000) or 1 MiB of records, and 100 scans.
local MOST_BYTES, MOST_SCANS, FIRST_PAGE, MOST_OF_PAGE = 1024 * 1024, 100, 10, 500
local cursor, wanted = ARGV[1], tonumber(ARGV[2])
local ids, bytes, scans, page = {}, 0, 0, FIRST_PAGE
repeat
  local reply = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', page)
  cursor, scans = reply[1], scans + 1
  for at = 1, #reply[2], 2 do
    ids[#ids + 1] = reply[2][at]
    bytes = bytes + #reply[2][at + 1]
  end
  -- Estimate from the size of these records how many more fit.
  local fitting = #ids > 0 and math.floor((MOST_BYTES - bytes) / math.max(bytes / #ids, 1)) or FIRST_PAGE
  page = math.max(1, math.min(fitting, wanted - #ids, MOST_OF_PAGE))
until cursor == '0' or #ids >= wanted or bytes >= MOST_BYTES or scans >= MOST_SCANS
return { cursor, unpack(ids) }
