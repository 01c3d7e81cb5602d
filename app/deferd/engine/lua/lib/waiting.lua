-- Jobs that wait for their next delivery.
-- @include record topic time_limits

-- Set the due time of a retry, which leaves the deadline where it is.
local function set_retry_due(record, due)
  if record.extra.l and record.extra.l > 0 then record.extra.v = record.extra.v or record.due end
  record.due, record.extra.sh = due, nil
end

-- Schedule when a job that waits becomes dead.
local function watch_expiry(id, record)
  local expiry = end_of_waiting(record)
  if expiry then
    redis.call('ZADD', EXPIRY, expiry, id)
    schedule(expiry)
  else
    redis.call('ZREM', EXPIRY, id)
  end
end
