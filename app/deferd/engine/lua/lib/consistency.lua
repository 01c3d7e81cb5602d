-- Checks the consistency of a job's data and repairs it. After findings. After the keys of lib/topic.lua these scripts take
--   KEYS[#KEYS] aside HASH what a repair has removed: "job <id> <ms>", "follow-up <id> <ms>", "settings <ms>" -> the
--     bytes as they were
--   ARGV[2] 1: repair what is found, in the same call; 0: change nothing
local ASIDE, REPAIR = KEYS[#KEYS], ARGV[2] == '1'

-- Which state counts when an id is in several: a job's end may not be undone, and a lease excludes other consumers.
local PRECEDENCE = { 'finished', 'dead', 'reserved', 'delayed', 'ready' }
-- Most ids in one command; Lua's stack holds about 8000 values.
local MOST_TOGETHER = 500
local MOST_BYTES = 1024 * 1024
local FIRST_PAGE = 10
local MOST_SCANS = 100

-- Scores of `ids` in a sorted set that is often empty.
local function scores_in(key, ids)
  if redis.call('EXISTS', key) == 0 then return {} end
  return redis.call('ZMSCORE', key, unpack(ids))
end

-- Fields of a hash that often does not exist.
local function fields_in(key, ids)
  return redis.call('EXISTS', key) == 1 and redis.call('HMGET', key, unpack(ids)) or {}
end

-- Have `check` look at the ids and records of one step through the pool, at most MOST_TOGETHER at a time. Returns the
-- next cursor, '0' after the last step, and how many jobs these were. Bound: about `wanted` jobs or 1 MiB of records, and
-- 100 scans.
local function scan_pool(cursor, wanted, check)
  local checked, bytes, page, scans = 0, 0, FIRST_PAGE, 0
  repeat
    local reply = redis.call('HSCAN', POOL, cursor, 'COUNT', page)
    cursor, scans = reply[1], scans + 1
    local ids, raws = {}, {}
    for at = 1, #reply[2], 2 do
      ids[#ids + 1] = reply[2][at]
      raws[#raws + 1] = reply[2][at + 1]
      bytes = bytes + #reply[2][at + 1]
      checked = checked + 1
      if #ids == MOST_TOGETHER then
        check(ids, raws)
        ids, raws = {}, {}
      end
    end
    if #ids > 0 then check(ids, raws) end
    -- Estimate from the size of these jobs how many more fit.
    local fitting = checked > 0 and math.floor((MOST_BYTES - bytes) / (bytes / checked)) or FIRST_PAGE
    page = math.max(1, math.min(fitting, wanted - checked, MOST_TOGETHER))
  until cursor == '0' or checked >= wanted or bytes >= MOST_BYTES or scans >= MOST_SCANS
  return cursor, checked
end

-- A lease lasts at most a day (limits.TTR_MAX_S); the store's clock may have stepped back by as much since.
local LONGEST_LEASE_MS = 2 * 86400000

local function is_number(value) return value == nil or type(value) == 'number' end
local function is_text(value) return value == nil or type(value) == 'string' end

-- Whether it is nothing or may be the name of a group. Its characters are those of an id.
local function is_group(name)
  return name == nil or type(name) == 'string' and #name <= 255 and string.find(name, '^[%w][%w._:-]*$') ~= nil
end

local function name_of(group) return group == '' and 'no group' or group end

-- Whether it is nothing or a table of strings, not an empty one.
local function is_texts(values)
  if values == nil then return true end
  if type(values) ~= 'table' or next(values) == nil then return false end
  for _, value in pairs(values) do
    if type(value) ~= 'string' then return false end
  end
  return true
end

local function is_backoff(backoff)
  if backoff == nil then return true end
  if type(backoff) ~= 'table' or not is_number(backoff.jitter) then return false end
  if backoff.kind == 'exponential' then return is_number(backoff.base) and is_number(backoff.cap) end
  if backoff.kind == 'fixed' then return type(backoff.seconds) == 'number' end
  if backoff.kind ~= 'schedule' or type(backoff.seconds) ~= 'table' or #backoff.seconds == 0 then return false end
  for _, seconds in ipairs(backoff.seconds) do
    if type(seconds) ~= 'number' then return false end
  end
  return true
end

-- Whether this is a log of attempts, as log_attempt writes it.
local function is_log(log)
  if log == nil then return true end
  if type(log) ~= 'table' then return false end
  for _, entry in ipairs(log) do
    if type(entry) ~= 'table' or type(entry[1]) ~= 'number' or type(entry[2]) ~= 'number' then return false end
    for at = 3, 5 do
      if type(entry[at]) ~= 'string' then return false end
    end
  end
  return true
end

-- The record without its body, or nil and the reason why the service cannot use it.
local function read_checked(id, raw)
  if #id > 255 or not string.find(id, '^[%w][%w._:-]*$') then return nil, 'no valid id' end
  if #raw < HEADER_BYTES then return nil, 'a record of ' .. #raw .. ' bytes' end
  local created, due, nonce, attempts, length, at = struct.unpack('<I6I6I6I4I4', raw)
  if at + length > #raw then return nil, 'a record that is cut off' end
  local extra = {}
  if length > 0 then
    local is_json
    is_json, extra = pcall(cjson.decode, string.sub(raw, at, at + length - 1))
    if not is_json or type(extra) ~= 'table' then return nil, 'a record whose extra is no JSON object' end
    local is_right = is_number(extra.t) and is_number(extra.m) and is_number(extra.x) and is_number(extra.r)
      and is_number(extra.f) and is_number(extra.n) and is_number(extra.k) and is_number(extra.s) and is_number(extra.q)
      and is_number(extra.i) and is_number(extra.l) and is_number(extra.v) and is_number(extra.u) and is_number(extra.w)
      and is_number(extra.y) and is_number(extra.o) and is_number(extra.da) and is_text(extra.e) and is_text(extra.d) and is_text(extra.c)
      and is_text(extra.p) and is_group(extra.gr) and is_number(extra.pr) and is_backoff(extra.b) and is_log(extra.a) and is_texts(extra.g) and is_texts(extra.h)
    if not is_right then return nil, 'a record whose extra has values of the wrong kind' end
    if extra.n and (extra.n < 0 or at + length + extra.n > #raw) then return nil, 'a record whose result is cut off' end
  end
  return { created = created, due = due, nonce = nonce, attempts = attempts, extra = extra }
end

-- The bytes of the items in the list of an id, and how many they are; nil if that is no list.
local function size_of_items(id)
  local key, bytes = attached().items_key(id), 0
  if redis.call('TYPE', key).ok ~= 'list' then return nil, 0 end
  local items = redis.call('LRANGE', key, 0, -1)
  for _, item in ipairs(items) do bytes = bytes + #item end
  return bytes, #items
end

-- Check the items collected under an id; `recorded` is their size as `items` has it, nil for none. A repair corrects
-- that, moves items aside that belong to nothing, and makes a record without its items an empty array. Returns how much
-- was read: the bytes, and 100 for each item.
local function check_collection(id, recorded, now)
  local here, open = attached(), {}
  for _, records in ipairs({ POOL, here.FOLLOW }) do
    local raw = redis.call('HGET', records, id)
    if raw and read_checked(id, raw) and here.is_open(raw) then open[#open + 1] = records end
  end
  local key, bytes, count = here.items_key(id), nil, 0
  if #open > 0 then bytes, count = size_of_items(id) end
  local read = (bytes or 0) + 100 * count
  if #open == 0 then
    report('items_wrong', id, 'of no job')
  elseif not bytes then
    report('items_wrong', id, 'no list of its items')
  elseif bytes == tonumber(recorded) then
    return read
  else
    report('items_wrong', id, string.format('%.0f bytes, recorded as %s', bytes, recorded or 'none'))
  end
  if not REPAIR then return read end
  if bytes then
    redis.call('HSET', here.ITEMS, id, bytes)
    return read
  end
  redis.call('HDEL', here.ITEMS, id)
  if redis.call('EXISTS', key) == 1 then
    redis.call('RENAME', key, string.format('%s/items/%s/%.0f', ASIDE, id, now))
  end
  for _, records in ipairs(open) do
    local record = read_record(redis.call('HGET', records, id))
    record.extra.y = nil
    redis.call('HSET', records, id, write_record(record))
  end
  return read
end

-- Check that the size of its items is recorded for a record that has them in a list.
local function check_items(id, raw, now)
  if read_extra(raw).y ~= 0 or redis.call('HEXISTS', attached().ITEMS, id) == 1 then return end
  check_collection(id, nil, now)
end

local function leave_all_states(id)
  for _, state in ipairs(PRECEDENCE) do
    redis.call('ZREM', set_of(state), id)
  end
  redis.call('ZREM', EXPIRY, id)
  forget_holders({ id })
end

local function set_aside(id, raw, now)
  leave_all_states(id)
  redis.call('HDEL', POOL, id)
  index_tags({ id })
  redis.call('HSET', ASIDE, string.format('job %s %.0f', id, now), raw)
end

local woken = false

local function append_and_wake(id, flow)
  FLOWS.append({ id }, last_position(), { flow })
  if not woken then wake_consumers() end
  woken = true
end

-- Put a job back at the end of the Ready list, or delay it again if it is not due. A consumer whose lease was lost may
-- still hold it: as the job will be handed out again, that receipt becomes void.
local function put_back(id, raw, due, now)
  redis.call('ZREM', DELAY, id)
  local nonce = read_nonce_and_attempts(raw)
  local voided = struct.pack('<I6', (nonce + 1) % NONCE_LIMIT)
  redis.call('HSET', POOL, id, string.sub(raw, 1, 12) .. voided .. string.sub(raw, 19))
  if due > now then
    redis.call('ZADD', DELAY, due, id)
    schedule(due)
    return 'delayed', due
  end
  append_and_wake(id, FLOWS.of_raw(raw))
  return 'ready', nil
end

-- What the entry in the expiry set should be, nil for none. That of a reserved job with a time limit depends on when
-- the attempt began: it is right if the lease fits.
local function wanted_expiry(record, state, expiry, lease_end, now)
  if state == 'delayed' or state == 'ready' then return (end_of_waiting(record)) end
  if state ~= 'reserved' then return nil end
  local deadline, limit = deadline_of(record.due, record.extra), record.extra.i or 0
  if limit == 0 then return deadline end
  if expiry and expiry >= lease_end and expiry <= (deadline or math.huge) then return expiry end
  return latest_lease_end(record.due, record.extra, now)
end

local function check_expiry(id, record, state, expiry, lease_end, now)
  local wanted = wanted_expiry(record, state, expiry, lease_end, now)
  if wanted == expiry then return end
  report('expiry_wrong', id, string.format('%s, where it should be %s', expiry or 'none', wanted or 'none'))
  if not REPAIR then return end
  if not wanted then
    redis.call('ZREM', EXPIRY, id)
    return
  end
  redis.call('ZADD', EXPIRY, wanted, id)
  if state == 'reserved' then redis.call('ZADD', RESERVED, 'XX', 'LT', wanted, id) end
  schedule(wanted)
end

-- `tagged` is what the topic's key of tags has for the job, nil or false for nothing.
local function check_tags(id, tags, tagged)
  local wanted, missing = tags and table.concat(tags, ' ') or '', nil
  for _, tag in ipairs(tags or {}) do
    if not redis.call('ZSCORE', of_shard('tag/' .. tag), TOPIC .. ' ' .. id) then missing = tag end
  end
  if wanted == (tagged or '') and not missing then return end
  report('tags_wrong', id, missing and 'not found by ' .. missing or string.format('%s, where its record says %s',
    tagged and '"' .. tagged .. '"' or 'none', wanted == '' and 'none' or '"' .. wanted .. '"'))
  if not REPAIR then return end
  index_tags({ id }, tags)
end

-- What a job has to do with groups, in one state with this score: its group must be counted, its place in the Ready list
-- be one of its flow, and REQUESTS have its group while it is held. `mark` is what REQUESTS has of that, nil for nothing.
local counted, slots = {}, {}
local function check_flow(id, extra, state, position, mark, entry)
  local flow = FLOWS.of(extra)
  local group = FLOWS.group_of(flow)
  local is_live = state ~= 'dead' and state ~= 'finished'
  if flow ~= FLOWS.PLAIN and is_live then
    if counted[group] == nil then counted[group] = redis.call('HEXISTS', topic_key('groups'), group) == 1 end
    if not counted[group] then
      report('group_wrong', name_of(group), 'it has jobs, and is not known')
      if REPAIR then FLOWS.joined(extra) end
      counted[group] = REPAIR
    end
  end
  if state == 'ready' and position then
    local first, last = FLOWS.PLAIN_FROM, math.huge
    if flow ~= FLOWS.PLAIN then
      if slots[flow] == nil then slots[flow] = FLOWS.slot(flow) or false end
      first, last = math.huge, math.huge
      if slots[flow] then first, last = FLOWS.positions(slots[flow]) end
    end
    if position < first or position > last then
      report('place_wrong', id, 'not among those of ' .. name_of(group))
      if REPAIR then
        redis.call('ZREM', READY, id)
        append_and_wake(id, flow)
        slots[flow] = nil
      end
    end
  elseif state == 'reserved' then
    local wanted = flow ~= FLOWS.PLAIN and '=' .. group or nil
    if (mark ~= '!' and mark or nil) ~= wanted then
      local is_noted = mark and '"' .. mark .. '"' or 'nothing'
      report('group_wrong', id, string.format('held, and noted with %s, where its group is %s', is_noted, name_of(group)))
      if REPAIR then
        local request_id, at = string.match(entry or '', '^([^ ]*) ?(%d*)')
        at = tonumber(at) or HAND_OUT.since(entry, redis.call('HGET', POOL, id), redis.call('ZSCORE', RESERVED, id))
        redis.call('HSET', REQUESTS, id, HAND_OUT.entry(request_id, at, wanted))
      end
    end
  end
end

-- Report all findings of one job, and repair them if REPAIR. `scores` maps states to the job's score in their sets;
-- `request` is what REQUESTS has for it, nil or false for nothing.
local function check_job(id, raw, scores, expiry, holder, request, tagged, now)
  local record, reason = read_checked(id, raw)
  if not record then
    report('unreadable', id, reason)
    if REPAIR then set_aside(id, raw, now) end
    return
  end
  if record.extra.y == 0 then check_items(id, raw, now) end
  local states = {}
  for _, state in ipairs(PRECEDENCE) do
    if scores[state] then states[#states + 1] = state end
  end
  if #states > 1 then
    report('in_two_places', id, table.concat(states, ', '))
    for at = 2, #states do
      if REPAIR then redis.call('ZREM', set_of(states[at]), id) end
    end
  end
  local state, score = states[1] or 'ready', states[1] and scores[states[1]]
  if #states == 0 then
    report('in_no_place', id, 'due ' .. string.format('%.0f', record.due))
    if REPAIR then state, score = put_back(id, raw, record.due, now) end
  elseif state == 'reserved' and score > now + LONGEST_LEASE_MS then
    report('lease_endless', id, 'until ' .. string.format('%.0f', score))
    if REPAIR then
      local lease_end = now + (record.extra.t or DEFAULT_TTR_MS)
      redis.call('ZADD', RESERVED, lease_end, id)
      schedule(lease_end)
    end
  elseif state == 'delayed' and score ~= record.due then
    report('due_differs', id, string.format('%.0f, its record says %.0f', score, record.due))
    if REPAIR then
      redis.call('ZADD', DELAY, record.due, id)
      schedule(record.due)
    end
  end
  check_expiry(id, record, state, expiry, state == 'reserved' and score, now)
  local mark = request and string.match(request, ' ([=!][^ ]*)$')
  if mark or record.extra.gr or record.extra.pr or state == 'ready' then
    check_flow(id, record.extra, state, score, mark, request)
  end
  holder = holder or request
  if tagged or record.extra.g then check_tags(id, record.extra.g, tagged) end
  if holder and state ~= 'reserved' then
    report('holder_wrong', id, state .. ', and held by ' .. holder)
    if REPAIR then forget_holders({ id }) end
  end
end
