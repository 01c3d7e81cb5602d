-- Create, change, advance or delete a schedule in one step: its next run is put as it moves on, or nothing is done.
-- KEYS: see lib/topic.lua, of the schedule's topic; then the same of the topic of the run to withdraw, if that is another
-- ARGV[1] topic | ARGV[2] name | ARGV[3] the `rev` that it must have, '': it must not exist
-- ARGV[4] topic of the runs to withdraw | ARGV[5] id of the next run if it is to be withdrawn, else ''; if it does not wait
--   any more, nothing is done, but the schedule is deleted also then
-- ARGV[6] 1: also withdraw all earlier runs that wait, see lib/schedules.lua; 2: withdraw none, but ARGV[5] must wait: it
--   is among the runs, and put again after it was cancelled, it would run
-- ARGV[7] ms at which to advance it next, '' when it is not active | ARGV[8] how many more runs were missed
-- ARGV[9] terms as in ARGV[3] of put.lua. The runs are placed already, by the topic's defaults for due times that these
--   have. They say nothing of a default durability, which does not matter, nor of the number of partitions: runs are in
--   the first one, where its equal share of the jobs is what counts
-- ARGV[10] how many fields to set, -1: delete it | field | value ...
-- then for each run: id | the job up to its `rest`, as in put.lua | following overlap catch_up, as in `runs` | what its
--   `extra` has of a window, a spread and how far it was moved: JSON without the braces
-- Returns { 1, now ms, rev } when it was done; { 0 } when it has changed meanwhile; { -3 } when the topic has no room for
--   all runs that it has not got yet;
--   { 'terms', ... } of lib/terms.lua when ARGV[9] is outdated; { -4 } when some earlier runs were withdrawn and
--   there are more: the caller repeats the call
-- A run that is due already is due in a millisecond, so that promote.lua decides what becomes of it. A job that has the
-- id of a run stays, in any state: an occurrence never runs twice.
-- Bound: the runs, and 100 earlier runs; the caller sends at most 100, and 4 MiB or one.
local CHANGED, FULL, MORE, KEPT = 0, -3, -4, 2
local MOST_EARLIER = 100
local name, must_wait = ARGV[2], ARGV[5]
local run_to_withdraw = ARGV[6] == '2' and '' or must_wait
local key, schedule_due = of_shard('schedule/') .. name, of_shard('schedule_due')
local earlier_runs = of_shard('earlier_runs')
local now = now_ms()
if (redis.call('HGET', key, 'rev') or '') ~= ARGV[3] then return { CHANGED } end

local keys_of_run = ARGV[4] ~= TOPIC and ARGV[4] ~= '' and { unpack(KEYS, #KEYS / 2 + 1) } or KEYS
local function withdraw()
  if run_to_withdraw ~= '' then scripts.withdraw_run(keys_of_run, { ARGV[4], run_to_withdraw }) end
end

-- Withdraw earlier runs; returns whether there are more.
local function withdraw_earlier()
  if ARGV[6] ~= '1' then return false end
  local members, ids = earlier_runs_of(earlier_runs, name, MOST_EARLIER)
  if #members == 0 then return false end
  redis.call('ZREM', earlier_runs, unpack(members))
  for _, id in ipairs(ids) do scripts.withdraw_run(keys_of_run, { ARGV[4], id }) end
  return #ids == MOST_EARLIER
end

local field_count = tonumber(ARGV[10])
if field_count < 0 then
  if withdraw_earlier() then return { MORE } end
  redis.call('ZREM', of_shard('schedules'), name)
  redis.call('ZREM', schedule_due, name)
  withdraw()
  redis.call('DEL', key)
  plan_visit(schedule_due, DUE)
  return { 1, now, 0 }
end

if must_wait ~= '' then
  local pool, delay = keys_of_run[1], keys_of_run[2]
  local due = redis.call('HEXISTS', string.sub(pool, 1, -5) .. 'runs', must_wait) == 1
    and redis.call('ZSCORE', delay, must_wait)
  if not due or tonumber(due) <= now then return { CHANGED } end
end

local first_run = 11 + 2 * field_count
local rest = #ARGV >= first_run and redis.call('HGET', key, 'rest')
local next_before = redis.call('HGET', key, 'next_id') or ''
local next_id = next_before
for at = 11, first_run - 1, 2 do
  if ARGV[at] == 'rest' then rest = ARGV[at + 1] end
  if ARGV[at] == 'next_id' then next_id = ARGV[at + 1] end
end

-- What follows the head of a run's job: `rest`, with these members in its `extra`.
local function rest_with(members)
  if members == '' then return rest end
  local length = struct.unpack('<I4', rest)
  local extra = length == 0 and '{' or string.sub(rest, 5, 3 + length) .. ','
  extra = extra .. members .. '}'
  return struct.pack('<I4', #extra) .. extra .. string.sub(rest, 5 + length)
end

local jobs, dues = {}, {}
for at = first_run, #ARGV, 4 do
  local head = ARGV[at + 1]
  local due = struct.unpack('<I8', head, 3)
  if due <= now then
    due = now + 1
    head = string.sub(head, 1, 2) .. struct.pack('<I8', due) .. string.sub(head, 11)
  end
  dues[#dues + 1] = due
  jobs[#jobs + 1] = ARGV[at]
  jobs[#jobs + 1] = head .. rest_with(ARGV[at + 3])
end

if #jobs > 0 then
  local settings = stored_settings()
  local outdated = outdated_terms(settings, ARGV[9])
  if outdated then return outdated end
  local bound = struct.unpack('<I4', jobs[2], 19)
  local most = math.min((settings.j or 0) > 0 and settings.j or math.huge, bound > 0 and bound or math.huge)
  if most < math.huge then
    local live = live_jobs()
    if run_to_withdraw ~= '' and keys_of_run == KEYS then live = live - 1 end
    local before = live
    for index = 1, #jobs, 2 do
      if jobs[index] == run_to_withdraw or redis.call('HEXISTS', POOL, jobs[index]) == 0 then live = live + 1 end
    end
    if live > before and live > math.ceil(most / (settings.n or 1)) then return { FULL } end
  end
end

if withdraw_earlier() then return { MORE } end
local rev = redis.call('HINCRBY', key, 'rev', 1)
if field_count > 0 then redis.call('HSET', key, unpack(ARGV, 11, first_run - 1)) end
if tonumber(ARGV[8]) > 0 then
  redis.call('HINCRBY', key, 'missed', ARGV[8])
  note_missed_runs(name, now)
end
redis.call('ZADD', of_shard('schedules'), 0, name)
withdraw()
local runs, earlier = topic_key('runs'), {}
if next_before ~= next_id and redis.call('HEXISTS', runs, next_before) == 1 then earlier[1] = next_before end
if #jobs > 0 then
  local waiting = 0
  for index, code in ipairs(scripts.put(KEYS, { TOPIC, '0', '', unpack(jobs) })[3]) do
    local id = jobs[2 * index - 1]
    if type(code) == 'table' then code = code[1] end
    if code ~= KEPT or redis.call('ZSCORE', DELAY, id) then
      local policy = ARGV[first_run + 4 * index - 2]
      waiting = waiting + redis.call('HSET', runs, id, string.format('%s %.0f %s', name, dues[index], policy))
      if id ~= next_id then earlier[#earlier + 1] = id end
    end
  end
  redis.call('HINCRBY', key, 'waiting', waiting)
end
for _, id in ipairs(earlier) do redis.pcall('ZADD', earlier_runs, 0, name .. ' ' .. id) end  -- see earlier_runs_of
if ARGV[7] == '' then
  redis.call('ZREM', schedule_due, name)
else
  redis.call('ZADD', schedule_due, ARGV[7], name)
end
plan_visit(schedule_due, DUE)
return { 1, now, rev }
