-- Check one step of a shard's schedules: each is listed, and each that makes runs is due to be advanced at some time. Each
-- of their earlier runs waits.
-- @inline findings
-- @flags allow-oom
-- KEYS[1] schedules ZSET and KEYS[2] schedule_due ZSET, see lib/schedules.lua | KEYS[3] due ZSET topic -> ms
-- KEYS[4] aside: the beginning of the new name of a schedule that cannot be read | KEYS[5] earlier_runs ZSET
-- ARGV[1] what to check: schedules, schedule_due, earlier_runs, or names, those in ARGV[5..]; unreadable: move those in
--   ARGV[5..] aside
-- ARGV[2] 1: repair what is found, in the same call | ARGV[3] cursor, 0 to begin | ARGV[4] about how many to check
-- Returns { next cursor, 0 after the last step, { kind, subject, detail, ... } for each finding,
--   { name, definition, state, ... } of the schedules that were checked, so that the caller checks whether they can be read }
-- While one of the keys is of the wrong type, which audit_types.lua finds, nothing is checked.
-- Bound: about ARGV[4] schedules, or those in ARGV; the caller sends at most 1000.
local SCHEDULES, SCHEDULE_DUE, DUE, EARLIER_RUNS = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local where, REPAIR, now = ARGV[1], ARGV[2] == '1', now_ms()
local prefix = string.sub(SCHEDULES, 1, -2) .. '/'
local names, next_cursor, texts = {}, '0', {}

for _, key in ipairs({ SCHEDULES, SCHEDULE_DUE, DUE, EARLIER_RUNS }) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= 'zset' then return { next_cursor, findings, texts } end
end

if where == 'names' or where == 'unreadable' then
  names = { unpack(ARGV, 5) }
else
  local lists = { schedules = SCHEDULES, schedule_due = SCHEDULE_DUE, earlier_runs = EARLIER_RUNS }
  local reply = redis.call('ZSCAN', lists[where], ARGV[3], 'COUNT', ARGV[4])
  next_cursor = reply[1]
  for at = 1, #reply[2], 2 do
    names[#names + 1] = reply[2][at]
  end
end

local function forget(name)
  redis.call('ZREM', SCHEDULES, name)
  redis.call('ZREM', SCHEDULE_DUE, name)
end

local function check_earlier_run(member)
  local name, id = string.match(member, '^(%S*) (.*)$')
  local topic = name and redis.pcall('HGET', prefix .. name, 'topic')
  if type(topic) == 'string' then
    local runs = string.sub(SCHEDULES, 1, -1 - #'schedules') .. topic .. ':runs'
    if redis.pcall('HEXISTS', runs, id) ~= 0 then return end  -- an error: a check of the topic reports that
  end
  report('schedule_wrong', name or member, 'no run ' .. (id or '') .. ' waits, but in earlier_runs')
  if REPAIR then redis.call('ZREM', EARLIER_RUNS, member) end
end

local function check(name)
  local key = prefix .. name
  if redis.call('EXISTS', key) == 0 then
    report('schedule_wrong', name, 'no schedule, but in ' .. where)
    if REPAIR then forget(name) end
    return
  end
  if redis.call('TYPE', key).ok ~= 'hash' then
    texts[#texts + 1], texts[#texts + 2], texts[#texts + 3] = name, '', ''
    return
  end
  local active, definition, state = unpack(redis.call('HMGET', key, 'active', 'definition', 'state'))
  texts[#texts + 1], texts[#texts + 2], texts[#texts + 3] = name, definition or '', state or ''
  if not redis.call('ZSCORE', SCHEDULES, name) then
    report('schedule_wrong', name, 'not in schedules')
    if REPAIR then redis.call('ZADD', SCHEDULES, 0, name) end
  end
  local due = redis.call('ZSCORE', SCHEDULE_DUE, name)
  if active == '1' and not due then
    report('schedule_stopped', name, 'active, and not due to be advanced')
    if REPAIR then redis.call('ZADD', SCHEDULE_DUE, tonumber(redis.call('HGET', key, 'next')) or now, name) end
  elseif active ~= '1' and due then
    report('schedule_wrong', name, 'not active, but in schedule_due')
    if REPAIR then redis.call('ZREM', SCHEDULE_DUE, name) end
  end
end

-- Before the repairs, which change both.
local earliest = redis.call('ZRANGE', SCHEDULE_DUE, 0, 0, 'WITHSCORES')[2]
local planned = redis.call('ZSCORE', DUE, MEMBER_OF_SCHEDULES)
if earliest and not (planned and tonumber(planned) <= tonumber(earliest)) then
  report('timer_late', 'schedules', string.format('planned at %s, first work at %s', planned or 'no time', earliest))
end

for _, name in ipairs(names) do
  if where == 'unreadable' then
    forget(name)
    if redis.call('EXISTS', prefix .. name) == 1 then
      redis.call('RENAME', prefix .. name, string.format('%s/schedule/%s/%.0f', KEYS[4], name, now))
    end
  elseif where == 'earlier_runs' then
    check_earlier_run(name)
  else
    check(name)
  end
end
if REPAIR or where == 'unreadable' then plan_visit(SCHEDULE_DUE, DUE) end
return { next_cursor, findings, texts }
