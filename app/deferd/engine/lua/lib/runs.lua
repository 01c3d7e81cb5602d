-- Runs of schedules that are due.
-- @include record transitions missed_runs

-- With catch_up none a run that is later than this is missed.
local MOST_LATE_MS = 60000
-- Most runs whose place one takes.
local MOST_REPLACED = 100

-- Whether a job is live: delayed, ready or reserved.
local function live_state(id)
  if redis.call('HEXISTS', POOL, id) == 0 then return nil end
  local state, score = state_of(id)
  if state == 'dead' or state == 'finished' then return nil end
  return state, score
end

-- The live runs before a run of a schedule, at most `most`: { id, state, score } of each. Runs are in the order of their
-- occurrences, and so of their ids. There may be several when somebody postponed one: those that still wait, the last one
-- that was due, and those that were due after it.
local function live_runs_before(prefix, name, id, most)
  local found = {}

  local function is_live(other)
    local state, score = live_state(other)
    if state and other < id and #found < most then found[#found + 1] = { other, state, score } end
    return state ~= nil
  end

  local range = { '(' .. name .. ' ' .. id, '[' .. name .. ' ', 'BYLEX', 'REV', 'LIMIT', 0, most }
  -- An error, when another program has damaged the key, has no elements.
  for _, member in ipairs(redis.pcall('ZRANGE', earlier_runs_key(prefix), unpack(range))) do
    is_live(string.sub(member, #name + 2))
  end
  local last_id, late_ids = unpack(redis.call('HMGET', prefix .. name, 'last_id', 'late_ids'))
  if last_id then is_live(last_id) end
  if late_ids then
    local live = {}
    for late_id in string.gmatch(late_ids, '%S+') do
      if is_live(late_id) then live[#live + 1] = late_id end
    end
    redis.call('HSET', prefix .. name, 'late_ids', table.concat(live, ' '))
  end
  return found
end

-- Decide what becomes of the runs among `due`, a list of ids and due times that are still in `delay`. One that is
-- missed is removed: it is so late that the next one is due too, and not all are made up for, or none are. So is one
-- that its schedule skips because a run before it is live; or it takes the place of those. One that somebody moved is
-- never missed. Returns the list without those that were removed, and how many run, were skipped, run in place of
-- another, were missed.
local function judge_runs(runs, due, now)
  local prefix, ids, removed, counts, left = of_shard('schedule/'), {}, {}, { 0, 0, 0, 0 }, {}
  local unjudged = {}  -- id -> its entry
  for index = 1, #due / 2 do
    ids[index] = due[2 * index - 1]
  end

  local function remove(id, state, score, why)
    remove_job(id, state, score, now, false, why)
    removed[id] = true
  end

  local function attempts_of(id)
    local raw = redis.call('HGET', POOL, id)
    if not raw or #raw < HEADER_BYTES then return nil end
    local _, attempts = read_nonce_and_attempts(raw)
    return attempts
  end

  local function judge(id, score, entry)
    local name, planned, following, overlap, catch_up = string.match(entry, '^(%S+) (%d+) (%d+) (%a+) (%a+)$')
    if not name then return end
    following = tonumber(following)
    local is_late = score == tonumber(planned)
      and (following > 0 and now >= following and catch_up ~= 'all'
        or catch_up == 'none' and now > score + MOST_LATE_MS)
    -- A run that has been delivered, because somebody moved it to earlier, is neither missed nor skipped.
    local may_be_removed = (is_late or overlap ~= 'allow') and attempts_of(id) == 0
    if is_late and may_be_removed then
      settle_run(prefix, id, entry, 'missed')
      note_missed_runs(name, now)
      remove(id, 'delayed', score, 'missed')
      counts[4] = counts[4] + 1
      return
    end
    local before = {}
    if may_be_removed and overlap ~= 'allow' then
      before = live_runs_before(prefix, name, id, overlap == 'skip' and 1 or MOST_REPLACED)
    end
    if #before > 0 and overlap == 'skip' then
      settle_run(prefix, id, entry, 'skips')
      remove(id, 'delayed', score, 'skipped')
      counts[2] = counts[2] + 1
      return
    end
    settle_run(prefix, id, entry, 'runs')
    for _, replaced in ipairs(before) do
      local other, state, state_score = unpack(replaced)
      if unjudged[other] then settle_run(prefix, other, unjudged[other], 'skips') end
      remove(other, state, state_score, 'overlapped')
    end
    local place = #before > 0 and 3 or 1
    counts[place] = counts[place] + 1
  end

  local entries = redis.call('HMGET', runs, unpack(ids))
  redis.call('HDEL', runs, unpack(ids))
  for index, entry in ipairs(entries) do
    unjudged[ids[index]] = entry
  end
  for index, entry in ipairs(entries) do
    unjudged[ids[index]] = nil
    if entry and not removed[ids[index]] then judge(ids[index], tonumber(due[2 * index]), entry) end
  end
  for index, id in ipairs(ids) do
    if not removed[id] then
      left[#left + 1] = id
      left[#left + 1] = due[2 * index]
    end
  end
  return left, counts
end
