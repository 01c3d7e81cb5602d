-- Check one step through a sorted set or hash of a topic: each member must be a job in the pool. For the tombstones of
-- cancelled jobs it is the reverse: one for any delivery of an id may exist only while the job does not. An id that is
-- taken may have a finished job, but no other; a follow-up needs a job that has not ended; collected items need a job
-- or a follow-up without a body of its own. A run of a schedule that waits is delayed; only the next one of its schedule
-- may have been moved to now, and all others are in `earlier_runs`.
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] delayed, ready, reserved, dead, finished, expiry, holders, requests, tagged, taken, follow, items, runs, or
--   cancelled
-- ARGV[4] cursor, 0 to begin | ARGV[5] about how many members to check
-- Returns { next cursor, 0 after the last step, members checked, { kind, id, detail, ... } for each finding }
-- Bound: about ARGV[5] members; the caller sends at most 1000. A small set that the store keeps packed is checked as a
-- whole. Of collected items about MOST_READ, as check_collection counts, and those of one job; then the cursor that is
-- returned also says how many members of the step have been checked.
local MOST_READ = 1024 * 1024
local name = ARGV[3]
local HASHES = { holders = HOLDERS, requests = REQUESTS, tagged = TAGGED, follow = attached().FOLLOW,
  items = attached().ITEMS, runs = attached().RUNS }
local is_hash = HASHES[name] ~= nil
local key = set_of(name) or HASHES[name] or ({ expiry = EXPIRY, cancelled = CANCELLED, taken = TAKEN })[name]
local HAS_CHECK_OF_ITS_OWN = { taken = true, follow = true, items = true, runs = true }
local cursor, checked_before = string.match(ARGV[4], '^(%d+) ?(%d*)$')
local reply = redis.call(is_hash and 'HSCAN' or 'ZSCAN', key, cursor, 'COUNT', ARGV[5])
local members = reply[2]
local first, read = 2 * (tonumber(checked_before) or 0) + 1, 0
local now = now_ms()

-- Check a follow-up. A repair starts it if its job has ended, and moves it aside if it cannot be read.
local function check_follow_up(id, raw, has_record)
  local record, reason = read_checked(id, raw)
  if not record then
    report('unreadable', id, 'its follow-up is ' .. reason)
    if not REPAIR then return end
    redis.call('HDEL', attached().FOLLOW, id)
    redis.call('HSET', ASIDE, string.format('follow-up %s %.0f', id, now), raw)
    return
  end
  check_items(id, raw, now)
  local state, score
  if has_record then state, score = state_of(id) end
  if has_record and state ~= 'dead' and state ~= 'finished' then
    local holder = read_checked(id, redis.call('HGET', POOL, id)) and read_record(redis.call('HGET', POOL, id))
    if not holder or holder.extra.o then return end
    report('follow_up_stuck', id, 'its job does not know it')
    holder.extra.o = 1
    if REPAIR then redis.call('HSET', POOL, id, write_record(holder)) end
    return
  end
  report('follow_up_stuck', id, state or 'no job')
  if not REPAIR then return end
  if has_record then remove_job(id, state, score, now, true) else attached().start_follow_up(id, now) end
end

local function check_run(id, entry)
  local name = string.match(entry, '^(%S+) %d+ %d+ %a+ %a+$')
  local prefix = of_shard('schedule/')
  local next_id = name and redis.call('HGET', prefix .. name, 'next_id')
  if next_id == id then return end
  if name and redis.call('ZSCORE', DELAY, id) then
    local member = name .. ' ' .. id
    -- Without a next run, the schedule does not exist: the run was due when that was deleted.
    if not next_id or redis.pcall('ZSCORE', earlier_runs_key(prefix), member) then return end
    report('run_unlisted', id, entry)
    if REPAIR then redis.call('ZADD', earlier_runs_key(prefix), 0, member) end
    return
  end
  report('run_stale', id, entry)
  if not REPAIR then return end
  redis.call('HDEL', attached().RUNS, id)
  settle_run(prefix, id, entry, 'runs')
end

for at = first, #members, 2 do
  if read > MOST_READ then return { string.format('%s %d', cursor, (at - 1) / 2), (at - first) / 2, findings } end
  local id = members[at]
  local has_record = redis.call('HEXISTS', POOL, id) == 1
  if name == 'items' then
    read = read + check_collection(id, members[at + 1], now)
  elseif name == 'runs' then
    check_run(id, members[at + 1])
  elseif name == 'follow' then
    check_follow_up(id, members[at + 1], has_record)
  elseif name == 'taken' then
    if has_record and not redis.call('ZSCORE', FINISHED, id) then
      report('taken_wrong', id, 'until ' .. members[at + 1])
      if REPAIR then redis.call('ZREM', TAKEN, id) end
    end
  elseif name == 'cancelled' then
    if has_record then report('tombstone_wrong', id, 'until ' .. members[at + 1]) end
  elseif not has_record then
    report('no_record', id, name)
  end
  if REPAIR and not HAS_CHECK_OF_ITS_OWN[name] and has_record == (name == 'cancelled') then
    if name == 'tagged' then index_tags({ id }) else redis.call(is_hash and 'HDEL' or 'ZREM', key, id) end
  end
end
return { reply[1], math.max(#members + 1 - first, 0) / 2, findings }
