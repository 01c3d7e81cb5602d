-- Reads records in portions: one command for many takes a third less of the store's time than one for each.
-- @include topic record
local MOST_BYTES = 1024 * 1024
local MOST_READ_AT_ONCE = 64

-- Read records until they are a megabyte, or until `each(index, raw)`, which gets those of ids that have one, returns
-- true. Returns how many ids were looked at. The first is read alone, then as many at a time as fit if they are as large
-- as the largest before.
local function read_records(ids, each)
  local at, bytes, largest = 0, 0, 0
  while at < #ids and (at == 0 or bytes < MOST_BYTES) do
    local room = largest == 0 and 1 or math.max(1, math.floor((MOST_BYTES - bytes) / largest))
    local count = math.min(room, MOST_READ_AT_ONCE, #ids - at)
    for index, raw in ipairs(redis.call('HMGET', POOL, unpack(ids, at + 1, at + count))) do
      if raw then
        bytes = bytes + #raw
        if #raw > largest then largest = #raw end
        if #raw >= HEADER_BYTES and each(at + index, raw) then return at + index end
      end
    end
    at = at + count
  end
  return at
end
