-- Rates: how many deliveries, or requests of a push, may begin in any span of time.
-- @include topic
-- A rate is a table { c = how many, p = in any span of so many ms }; spans are half-open, by the store's clock. What began
-- in the last span is a LIST of buckets, oldest first: the ms of its first u48 | how many began before the bucket u48 | how
-- many in it u32. A bucket is a part of the span, at least a ms; all that is in it counts until its last ms is p ago, so
-- that a limit is never exceeded, and is reached but for one part in BUCKETS.
local RATE = { BUCKETS = 1000, SLACK_MS = 1000 }

function RATE.bucket_ms(rate) return math.max(1, math.floor(rate.p / RATE.BUCKETS)) end

-- Have the key expire when nothing of it counts any more.
function RATE.keep(key, rate) redis.call('PEXPIRE', key, rate.p + RATE.bucket_ms(rate) + RATE.SLACK_MS) end

function RATE.packed(bucket) return struct.pack('<I6I6I4', bucket.first_ms, bucket.before, bucket.count) end

function RATE.bucket_at(key, index)
  local bucket = redis.pcall('LRANGE', key, index, index)[1]
  if not bucket or #bucket ~= 16 then return nil end
  local first_ms, before, count = struct.unpack('<I6I6I4', bucket)
  return { first_ms = first_ms, before = before, count = count }
end

-- What began in the last span, as a table: `total`, and when there is anything the `oldest` and `newest` bucket. What seems
-- to be later than now is from before the clock was set back, and counts as now; what another program has put there counts
-- as nothing. `only_looks`: nothing is written, and nothing can be noted. Bound: BUCKETS + 1 buckets.
function RATE.window(key, rate, now, only_looks)
  local from, to, newest, later = 0, -1, RATE.bucket_at(key, -1), 0
  if not newest then
    if not only_looks then redis.call('DEL', key) end
    return { total = 0 }
  end
  local last = newest.before + newest.count
  while newest and newest.first_ms > now do
    later = later + newest.count
    if only_looks then to = to - 1 else redis.call('LTRIM', key, 0, -2) end
    newest = RATE.bucket_at(key, to)
  end
  if later > 0 then
    newest = { first_ms = now, before = last - later, count = later }
    if not only_looks then
      redis.call('RPUSH', key, RATE.packed(newest))
      RATE.keep(key, rate)
    end
  end
  local oldest = RATE.bucket_at(key, from)
  while oldest and oldest.before < newest.before and RATE.room_at({ oldest = oldest }, rate) <= now do
    if only_looks then from = from + 1 else redis.call('LPOP', key) end
    oldest = RATE.bucket_at(key, from)
  end
  if not oldest or oldest.before >= newest.before then oldest = newest end
  if RATE.room_at({ oldest = oldest }, rate) <= now then
    if not only_looks then redis.call('DEL', key) end
    return { total = 0 }
  end
  return { total = last - oldest.before, oldest = oldest, newest = newest }
end

-- The ms at which something leaves the span; only of a window that is not empty.
function RATE.room_at(window, rate) return window.oldest.first_ms + rate.p + RATE.bucket_ms(rate) - 1 end

-- Note that `count` more begin now, with what `window` has returned in the same call.
function RATE.note(key, window, rate, count, now)
  local newest = window.newest
  if newest and now - newest.first_ms < RATE.bucket_ms(rate) then
    newest.count = newest.count + count
    redis.call('LSET', key, -1, RATE.packed(newest))
  else
    newest = { first_ms = now, before = newest and newest.before + newest.count or 0, count = count }
    redis.call('RPUSH', key, RATE.packed(newest))
  end
  window.total, window.oldest, window.newest = window.total + count, window.oldest or newest, newest
  RATE.keep(key, rate)
end
