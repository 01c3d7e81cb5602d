-- Rates: how many deliveries, or requests of a push, may begin in any span of time.
-- @include topic
-- A rate is a table { c = how many, p = in any span of so many ms }; spans are half-open, by the store's clock. What began
-- in the last span is a STRING: how many u32 | for each of its buckets: the ms of its first u48 | how many u32. A bucket
-- is a span of p / BUCKETS; all that is in it counts until the last ms of the bucket is p ago, so that a limit is never
-- exceeded, and is reached but for one part in BUCKETS.
local RATE = { BUCKETS = 200, PAIR = 10, SLACK_MS = 1000 }

function RATE.bucket_ms(rate) return math.max(1, math.floor(rate.p / RATE.BUCKETS)) end

-- What began in the last span, as a table { total, buckets }. What seems to be later than now is from before the clock was
-- set back, and counts as now. Bound: BUCKETS + 1 buckets.
function RATE.window(key, rate, now)
  local raw = redis.call('GET', key)
  if not raw then return { total = 0, buckets = '' } end
  local total, at = struct.unpack('<I4', raw)
  local counted_ms = rate.p + RATE.bucket_ms(rate) - 1
  while at <= #raw do
    local first, count = struct.unpack('<I6I4', raw, at)
    if first > now then return { total = total, buckets = struct.pack('<I6I4', now, total) } end
    if first + counted_ms > now then break end
    total, at = total - count, at + RATE.PAIR
  end
  return { total = total, buckets = string.sub(raw, at) }
end

-- The ms at which something leaves the span; only of a window that is not empty.
function RATE.room_at(window, rate)
  return struct.unpack('<I6', window.buckets) + rate.p + RATE.bucket_ms(rate) - 1
end

-- Note that `count` more begin now, with what `window` has returned in the same call.
function RATE.note(key, window, rate, count, now)
  local buckets = window.buckets
  local last = #buckets - RATE.PAIR + 1
  local first, in_bucket
  if last >= 1 then first, in_bucket = struct.unpack('<I6I4', buckets, last) end
  if first and now - first < RATE.bucket_ms(rate) then
    buckets = string.sub(buckets, 1, last - 1) .. struct.pack('<I6I4', first, in_bucket + count)
  else
    buckets = buckets .. struct.pack('<I6I4', now, count)
  end
  window.total, window.buckets = window.total + count, buckets
  redis.call('SET', key, struct.pack('<I4', window.total) .. buckets, 'PX', rate.p + RATE.bucket_ms(rate) + RATE.SLACK_MS)
end
