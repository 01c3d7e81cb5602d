-- Check what is known of the groups of a topic: how many jobs each has, how many of them are held, and which job keeps
-- its place.
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3] whole: count all jobs in this step. ARGV[4] numbers of the shelf's last batches | ARGV[5..] two for each group with
--     jobs on the shelf: group | how many
--   Returns { 1, findings, { group, id, ... } that may not keep a place }
--   or { 0 } when the topic is too large, { 2 } when jobs have moved to or from the shelf since it was read
-- or mark: mark groups, so that it is known later whether they have changed. ARGV[4] cursor, 0 to begin | ARGV[5] how many
--   Returns { next cursor, 0 after the last step, findings, { groups ... }, { group, id, ... } as above }
-- or count: count one step of jobs. ARGV[4] cursor | ARGV[5] how many
--   Returns { next cursor, { group, live jobs, held ones, ... } }
-- or compare: ARGV[4..] four for each group: group | live jobs that were counted | held ones | how many more of both, two
--     numbers, the group was off by in an earlier pass, '' for none, - for groups that only lose their mark.
--   Returns { findings, { group, how many more of both, ... } of those that have not changed since they were marked, and
--     are off }. Only those that are off by the same again are findings
-- or holds: check which job keeps the place of a group. ARGV[4..] two for each: group | id. Returns { findings }
-- Bound: what the caller names, at most 1000; whole: MOST_AT_ONCE jobs and groups, and 1 MiB of records
local MOST_AT_ONCE = 2000
local part, known = ARGV[3], topic_key('groups')
local counts, doubtful = {}, {}

local function add(group, live, held)
  local count = counts[group] or { 0, 0 }
  counts[group] = count
  count[1], count[2] = count[1] + live, count[2] + held
end

local function count(ids, raws)
  local dead, finished, reserved = scores_in(DEAD, ids), scores_in(FINISHED, ids), scores_in(RESERVED, ids)
  for index, id in ipairs(ids) do
    local flow = FLOWS.of_raw(raws[index])
    if flow ~= FLOWS.PLAIN and not dead[index] and not finished[index] and read_checked(id, raws[index]) then
      local group = FLOWS.group_of(flow)
      add(group, 1, group ~= '' and reserved[index] and 1 or 0)
    end
  end
end

-- Whether a job that waits, not on the shelf, is in the group.
local function waits_in(group, id)
  local raw = redis.call('HGET', POOL, id)
  if not raw or FLOWS.group_of(FLOWS.of_raw(raw)) ~= group then return false end
  return (redis.call('ZSCORE', DELAY, id) or redis.call('ZSCORE', READY, id)) and true
end

local function look_at_entry(group, entry)
  if not string.find(entry, '^%d+ %d+ %d .*$') then
    report('group_wrong', name_of(group), 'its numbers are "' .. entry .. '"')
    if REPAIR then redis.call('HSET', known, group, '0 0 ' .. FLOWS.BLOCKED .. ' ') end  -- it stays until it is counted
  end
  local hold = FLOWS.read(group).hold
  if hold ~= '' and not waits_in(group, hold) then
    doubtful[#doubtful + 1] = group
    doubtful[#doubtful + 1] = hold
  end
end

local function repair_counts(group, state, live, held)
  report('group_wrong', name_of(group), string.format('counted as %.0f jobs, %.0f of them held, and there are %.0f and %.0f',
    state.live, state.reserved, live, held))
  if not REPAIR then return end
  state.live, state.reserved = live, held
  FLOWS.unblock(group, state)
  FLOWS.write(state)
end

if part == 'whole' then
  if redis.call('HLEN', POOL) > MOST_AT_ONCE or redis.call('HLEN', known) > MOST_AT_ONCE then return { 0 } end
  if ARGV[4] ~= SHELF.number('out') .. ' ' .. SHELF.number('in') then return { 2 } end
  if scan_pool('0', MOST_AT_ONCE + 1, count) ~= '0' then return { 0 } end
  for at = 5, #ARGV, 2 do add(ARGV[at], tonumber(ARGV[at + 1]), 0) end
  local entries = redis.call('HGETALL', known)
  for at = 1, #entries, 2 do
    look_at_entry(entries[at], entries[at + 1])
    add(entries[at], 0, 0)
  end
  for group, both in pairs(counts) do
    local state = FLOWS.read(group)
    if state.live ~= both[1] or state.reserved ~= both[2] then
      repair_counts(group, state, both[1], both[2])
    elseif REPAIR and state.live == 0 then
      FLOWS.unblock(group, state)
      FLOWS.write(state)
    end
  end
  return { 1, findings, doubtful }
elseif part == 'mark' then
  local reply, groups = redis.call('HSCAN', known, ARGV[4], 'COUNT', ARGV[5]), {}
  for at = 1, #reply[2], 2 do
    local group, entry = reply[2][at], reply[2][at + 1]
    look_at_entry(group, entry)
    local before, flags, behind = string.match(redis.call('HGET', known, group), '^(%d+ %d+ )(%d)(.*)$')
    if before then
      redis.call('HSET', known, group, before .. flags % FLOWS.MARKED + FLOWS.MARKED .. behind)
      groups[#groups + 1] = group
    end
  end
  return { reply[1], findings, groups, doubtful }
elseif part == 'count' then
  local cursor, flat = scan_pool(ARGV[4], tonumber(ARGV[5]), count), {}
  for group, both in pairs(counts) do
    flat[#flat + 1], flat[#flat + 2], flat[#flat + 3] = group, both[1], both[2]
  end
  return { cursor, flat }
elseif part == 'compare' then
  local off = {}
  for at = 4, #ARGV, 4 do
    local group, live, held, before = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
    local entry = redis.call('HGET', known, group)
    local flags = entry and string.match(entry, '^%d+ %d+ (%d)')
    if flags and tonumber(flags) >= FLOWS.MARKED then
      local state = FLOWS.read(group)
      local now_off = string.format('%.0f %.0f', live - state.live, held - state.reserved)
      if before ~= '-' and now_off ~= '0 0' and before == now_off then repair_counts(group, state, live, held) end
      if REPAIR and now_off == '0 0' and live == 0 then FLOWS.unblock(group, state) end
      FLOWS.write(state)
      if before ~= '-' and now_off ~= '0 0' then
        off[#off + 1] = group
        off[#off + 1] = now_off
      end
    end
  end
  return { findings, off }
end
for at = 4, #ARGV, 2 do
  local group, id = ARGV[at], ARGV[at + 1]
  local state = FLOWS.read(group)
  if state.hold == id and not waits_in(group, id) then
    report('group_wrong', name_of(group), 'it waits for ' .. id .. ', which does not wait in it')
    if REPAIR then
      state.hold = ''
      FLOWS.unblock(group, state)
      FLOWS.write(state)
    end
  end
end
return { findings }
