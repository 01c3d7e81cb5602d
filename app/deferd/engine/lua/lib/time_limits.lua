-- When a job must have ended: its ttl, its deadline, and the time limit of an attempt.
-- @include record topic

-- The ms by which a job must be finished, nil without a deadline. It counts from the due time before any retry.
local function deadline_of(due, extra)
  return extra.l and extra.l > 0 and (extra.v or due) + extra.l or nil
end

-- The ms at which the lease of an attempt that begins now ends at the latest; nil without time limit and deadline.
local function latest_lease_end(due, extra, now)
  local deadline = deadline_of(due, extra)
  if not extra.i or extra.i == 0 then return deadline end
  return math.min(now + extra.i, deadline or math.huge)
end

-- When a job that waits becomes dead, and the reason; nil if it may wait for ever. Only a job that was never delivered
-- still has its ttl to meet.
local function end_of_waiting(record)
  local extra, deadline = record.extra, deadline_of(record.due, record.extra)
  if extra.x and extra.x > 0 and record.attempts == 0 and not extra.s then
    local expiry = record.due + extra.x
    if not deadline or expiry <= deadline then return expiry, 'expired' end
  end
  if deadline then return deadline, 'deadline' end
  return nil, nil
end
