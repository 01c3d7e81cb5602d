-- Rates: how many deliveries, or requests of a push, may begin in any span of time.
-- @include topic
-- A rate is a table { c = how many, p = in any span of so many ms }; spans are half-open, by the store's clock. What began
-- in the last span is a LIST of buckets, oldest first: the ms of its first u48 | how many began before the bucket u48 | how
-- many in it u32. A bucket is a part of the span, at least a ms; all that is in it counts until its last ms is p ago, so
-- that a limit is never exceeded, and is reached but for one part in BUCKETS.
local RATE = { BUCKETS = 1000, SLACK_MS = 1000 }

function RATE.bucket_ms(rate) return math.max(1, math.floor(rate.p / RATE.BUCKETS)) end

function RATE.bucket_at(key, index)
  local bucket = redis.call('LRANGE', key, index, index)[1]
  if not bucket then return nil end
  local first_ms, before, count = struct.unpack('<I6I6I4', bucket)
  return { first_ms = first_ms, before = before, count = count }
end

-- What began in the last span, as a table: `total`, and when there is anything the `oldest` and `newest` bucket. What seems
-- to be later than now is from before the clock was set back, and counts as now. `only_looks`: nothing is written, and
-- nothing can be noted. Bound: BUCKETS + 1 buckets.
function RATE.window(key, rate, now, only_looks)
  local at, oldest, newest = 0, RATE.bucket_at(key, 0), nil
  while oldest and RATE.room_at({ oldest = oldest }, rate) <= now do
    if only_looks then at = at + 1 else redis.call('LPOP', key) end
    oldest = RATE.bucket_at(key, at)
  end
  if not oldest then return { total = 0 } end
  newest = RATE.bucket_at(key, -1)
  local total = newest.before + newest.count - oldest.before
  if newest.first_ms > now then
    newest = { first_ms = now, before = oldest.before, count = total }
    if not only_looks then
      redis.call('DEL', key)
      redis.call('RPUSH', key, struct.pack('<I6I6I4', now, newest.before, total))
    end
    oldest = newest
  end
  return { total = total, oldest = oldest, newest = newest }
end

-- The ms at which something leaves the span; only of a window that is not empty.
function RATE.room_at(window, rate) return window.oldest.first_ms + rate.p + RATE.bucket_ms(rate) - 1 end

-- Note that `count` more begin now, with what `window` has returned in the same call.
function RATE.note(key, window, rate, count, now)
  local newest = window.newest
  if newest and now - newest.first_ms < RATE.bucket_ms(rate) then
    newest.count = newest.count + count
    redis.call('LSET', key, -1, struct.pack('<I6I6I4', newest.first_ms, newest.before, newest.count))
  else
    newest = { first_ms = now, before = newest and newest.before + newest.count or 0, count = count }
    redis.call('RPUSH', key, struct.pack('<I6I6I4', newest.first_ms, newest.before, newest.count))
  end
  window.total, window.oldest, window.newest = window.total + count, window.oldest or newest, newest
  redis.call('PEXPIRE', key, rate.p + RATE.bucket_ms(rate) + RATE.SLACK_MS)
end
