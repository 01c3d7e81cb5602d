-- The jobs of one step of a call on many jobs (engine/bulk_actions.py). Each step is atomic. After the keys of
-- lib/topic.lua such a script takes
--   ARGV[1] topic
--   ARGV[2] a JSON object:
--     bound    only jobs put until this ms; also those put later than now, before the store's clock stepped back
--     cutoff   only jobs that were put until this ms, and dead ones that died until then, as far as it is known
--     dry_run  true: change nothing
--     samples  how many of the matched jobs to name
--     request  for a call that is remembered: the name of its key bulk/<request> of the shard, a HASH. Its fields:
--                bound | done, delayed, ready, reserved, dead, finished: the numbers of the whole call |
--                "topic id" of each job that a repetition must leave alone
--     kept     for how long it is kept after this step, ms; an hour if left out
--     tag      only jobs with this tag
--     group    only jobs of this group
--     state    the jobs of this state, in their order; without it those of ARGV[3..]
--     from, before   with state: only jobs due from this ms on, before this ms
--     most     with state: most jobs to look at
--     last_first     with state delayed: those due last come first
--     score, id, end with state: where the step before ended, as it returned them; left out in the first step
--     to_score, to_id  with state delayed: the end of the range, see lib/paging.lua
--   ARGV[3..] ids
-- and returns { jobs looked at, 1 when the state may have more jobs, score, id, end,
--   done, and of the matched jobs: delayed, ready, reserved, dead, finished, the first and the last due time, ms, of those
--   that are delayed or ready, '' without one; then id and state of each sample }
-- Bound: the ids or `most`, at most 1000, and 1 MiB of records, or one; if their sizes differ much, some more are read.
local OPTIONS = cjson.decode(ARGV[2])
local now = now_ms()
local BULK = OPTIONS.request and of_shard('bulk/' .. OPTIONS.request)
local REMEMBERED_MS = 3600000
local COUNTED = { 'delayed', 'ready', 'reserved', 'dead', 'finished' }

-- The ids of one page of the state with their scores by id, whether there are more behind it, and the score of the last
-- job that the call may look at. That is the state's last one when the call begins: jobs that are moved or become ready
-- behind it meanwhile are not looked at.
local function page()
  local key = set_of(OPTIONS.state)
  local last = OPTIONS['end'] or redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if not last then return {}, {}, false, '' end
  local low, high = 0, redis.call('ZCOUNT', key, '-inf', last)
  if OPTIONS.state == 'delayed' then
    if OPTIONS.from then low = redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', OPTIONS.from)) end
    if OPTIONS.before then
      high = math.min(high, redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', OPTIONS.before)))
    end
  end
  if OPTIONS.to_score and OPTIONS.last_first then
    low = math.max(low, rank_before(key, OPTIONS.to_score, OPTIONS.to_id))
  elseif OPTIONS.to_score then
    high = math.min(high, rank_after(key, OPTIONS.to_score, OPTIONS.to_id))
  end
  local first, beyond  -- ranks
  if OPTIONS.last_first then
    beyond = OPTIONS.score and math.min(rank_after(key, OPTIONS.score, OPTIONS.id), high) or high
    -- The job at which the step before ended may still be there.
    if OPTIONS.score and beyond > 0 and redis.call('ZRANGE', key, beyond - 1, beyond - 1)[1] == OPTIONS.id then
      beyond = beyond - 1
    end
    first = math.max(beyond - OPTIONS.most, low)
  else
    first = OPTIONS.score and math.max(rank_after(key, OPTIONS.score, OPTIONS.id), low) or low
    beyond = math.min(first + OPTIONS.most, high)
  end
  local ids, scores = {}, {}
  if beyond <= first then return ids, scores, false, last end
  local members = redis.call('ZRANGE', key, first, beyond - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    local index = OPTIONS.last_first and (#members - at + 1) / 2 or (at + 1) / 2
    ids[index] = members[at]
    scores[members[at]] = members[at + 1]
  end
  return ids, scores, OPTIONS.last_first and first > low or not OPTIONS.last_first and beyond < high, last
end

-- Whether the job was there at the cutoff, and dead if it is dead.
local function was_there(created, state, raw)
  if created > OPTIONS.cutoff or state ~= 'dead' then return created <= OPTIONS.cutoff end
  local is_read, extra = pcall(read_extra, raw)
  return is_read and (extra.da or 0) <= OPTIONS.cutoff
end

local function has_tag(tags) return string.find(' ' .. tags .. ' ', ' ' .. OPTIONS.tag .. ' ', 1, true) end

-- The matching jobs among `ids`, and how many of the ids were looked at. The jobs are lists of the same length: ids,
-- raws, states, dues, and members, their names "topic id". All cost counts here: a call may have 100,000 jobs.
local function matching(ids)
  local members, excluded, seen = {}, {}, {}
  for index, id in ipairs(ids) do
    members[index] = TOPIC .. ' ' .. id
  end
  if BULK then excluded = redis.call('HMGET', BULK, unpack(members)) end
  if OPTIONS.tag then
    for index, tags in ipairs(redis.call('HMGET', TAGGED, unpack(ids))) do
      excluded[index] = excluded[index] or not tags or not has_tag(tags)
    end
  end
  local delayed = not OPTIONS.state and redis.call('ZMSCORE', DELAY, unpack(ids))
  local bound, from, before = OPTIONS.bound, OPTIONS.from or 0, OPTIONS.before or math.huge
  local jobs = { ids = {}, raws = {}, states = {}, dues = {}, members = {} }
  local count = 0
  local looked = read_records(ids, function(index, raw)
    local id = ids[index]
    if excluded[index] or seen[id] then return end
    seen[id] = true
    local created, due = struct.unpack('<I6I6', raw)
    if created > bound and created <= now or due < from or due >= before then return end
    local state = OPTIONS.state or delayed[index] and 'delayed' or state_of(id)
    if OPTIONS.cutoff and not was_there(created, state, raw) then return end
    if OPTIONS.group and FLOWS.group_of(FLOWS.of_raw(raw)) ~= OPTIONS.group then return end
    count = count + 1
    jobs.ids[count], jobs.raws[count], jobs.dues[count], jobs.members[count] = id, raw, due, members[index]
    jobs.states[count] = state
  end)
  return jobs, looked
end

-- Run the step: `act(jobs)` changes the matching jobs, and returns how many it changed, and the names of those that a
-- repetition must leave alone although they are still there.
local function run_step(act)
  local ids, scores, more, last = {}, {}, false, ''
  if OPTIONS.state then
    ids, scores, more, last = page()
  else
    for at = 3, #ARGV do
      ids[at - 2] = ARGV[at]
    end
  end
  local jobs, looked = { ids = {} }, 0
  if #ids > 0 then jobs, looked = matching(ids) end
  local matched, first_due, last_due = { delayed = 0, ready = 0, reserved = 0, dead = 0, finished = 0 }, math.huge, 0
  for index = 1, #jobs.ids do
    local state = jobs.states[index]
    matched[state] = matched[state] + 1
    if state == 'delayed' or state == 'ready' then
      first_due, last_due = math.min(first_due, jobs.dues[index]), math.max(last_due, jobs.dues[index])
    end
  end
  local done, left = 0, {}
  if #jobs.ids > 0 and not OPTIONS.dry_run then
    done, left = act(jobs)
    if BULK then
      local fields = {}
      for index, member in ipairs(left) do
        fields[2 * index - 1], fields[2 * index] = member, ''
      end
      if #fields > 0 then redis.call('HSET', BULK, unpack(fields)) end
      for _, state in ipairs(COUNTED) do
        if matched[state] > 0 then redis.call('HINCRBY', BULK, state, matched[state]) end
      end
      if done > 0 then redis.call('HINCRBY', BULK, 'done', done) end
      redis.call('PEXPIRE', BULK, OPTIONS.kept or REMEMBERED_MS)
    end
  end
  local last_id = ids[looked] or ''
  local reply = { looked, (more or looked < #ids) and 1 or 0, scores[last_id] or '', last_id, last, done }
  for _, state in ipairs(COUNTED) do
    reply[#reply + 1] = matched[state]
  end
  local has_due = first_due < math.huge
  reply[#reply + 1] = has_due and string.format('%.0f', first_due) or ''
  reply[#reply + 1] = has_due and string.format('%.0f', last_due) or ''
  for index = 1, math.min(OPTIONS.samples or 0, #jobs.ids) do
    reply[#reply + 1] = jobs.ids[index]
    reply[#reply + 1] = jobs.states[index]
  end
  return reply
end
