-- Flow control: groups take turns, priorities go first, and limits hold back what is ready.
-- @include clock topic record rate
-- A flow is the jobs of one priority in one group; its name is "PRIORITY GROUP", with an empty group for jobs that have
-- none. Jobs without both are the flow "0 " and cost nothing: in a topic that has no others, none of these keys exist.
--   groups   HASH group -> "LIVE RESERVED FLAGS HOLD": how many live jobs it has (delayed ones, also on the shelf, ready
--            and reserved ones), and reserved ones of those; PAUSED + BLOCKED (a flow of it is blocked); and in a group with
--            strict order, while it waits, the id of the job that was handed out last and has not ended, nothing for
--            none. Until that has ended no other one is handed out. An entry exists while there are live jobs, or the
--            group is paused or blocked. '' is the group of jobs that have a priority alone. MARKED is added to its flags
--            by a consistency check, and goes away when the entry is written: it has not changed while it is there
--   flows    HASH flow -> its slot, a number: the positions of its ready jobs in the Ready list are those from
--            FIRST + slot * WIDTH on. They are below PLAIN_FROM; from there on are those of "0 ". So the first job of the
--            list tells whether any flow has ready jobs. flows/free ZSET slot -> slot, of those that are free below the
--            highest
--   turns    ZSET flow -> when its turn is: -priority * BAND + a virtual time, the lowest is next. A job that is handed out
--            adds COST / weight. A flow that limits hold back has (priority + 1) * BAND + that time. A flow without ready
--            jobs stays until its turn comes, so that it gets no further turn before that. turns/newest HASH where a band
--            begins -> FLOWS.newest; cursor -> of the step after a change of the limits
--   limited  ZSET group -> ms at which its rate has room again, NEVER when something else must happen first. '' is there
--            while a pop has found nothing that limits do not hold back, and is the time of the topic's rate. ALL is there
--            after a change of the limits, until all blocked flows have been looked at again
--   rate/GROUP, rate/  LIST lib/rate.lua, of a group and of the topic
-- REQUESTS has a third word for reserved jobs of a flow, "=GROUP", and for all others of a topic with limits, "!".
-- Virtual time is that of start-time fair queueing (Goyal, Vin, Cheng 1996), but that a flow that becomes busy begins half
-- a turn later than the flow whose turn it is, behind those that have begun there before: a stream of new groups then takes
-- no turns from those that have had one.
FLOWS.FIRST, FLOWS.WIDTH, FLOWS.MOST = -2 ^ 53, 2 ^ 32, 2 ^ 21 - 2 ^ 11
FLOWS.PLAIN_FROM = FLOWS.FIRST + FLOWS.MOST * FLOWS.WIDTH
FLOWS.BAND, FLOWS.COST, FLOWS.NEVER, FLOWS.ALL = 2 ^ 49, 10080, 2 ^ 53, '*'  -- COST: up to 10, each weight divides it
FLOWS.PAUSED, FLOWS.BLOCKED, FLOWS.MARKED = 1, 2, 4
FLOWS.PLAIN = '0 '
FLOWS.MOST_LOOKED_AT = 100  -- heads of flows
FLOWS.MOST_TURNS = 250  -- in a call: each takes 20 to 30 microseconds of the store's time
FLOWS.MOST_STORED = 500  -- groups in a command
FLOWS.MOST_BYTES = 1024 * 1024
FLOWS.TRY_AGAIN_MS = 1000

-- Whether the topic has jobs with a group or a priority, or such that are limited.
function FLOWS.exist()
  return FLOWS.states ~= nil or redis.call('EXISTS', topic_key('groups'), topic_key('limited')) > 0
end

-- Scripts call this before their first write: it fails for a key of the wrong type, and then nothing may be half done.
function FLOWS.check_types()
  for _, name in ipairs({ 'groups', 'flows', 'turns/newest' }) do redis.call('HLEN', topic_key(name)) end
  for _, name in ipairs({ 'turns', 'flows/free', 'limited' }) do redis.call('ZCARD', topic_key(name)) end
end

-- The flow of a job by the extra of its record.
function FLOWS.of(extra)
  local group, priority = extra.gr, tonumber(extra.pr) or 0
  if type(group) ~= 'string' then group = '' end
  return string.format('%d ', math.max(0, math.min(priority, 9))) .. group
end

-- The same by the record; of one that cannot be read, "0 ".
function FLOWS.of_raw(raw)
  if not raw or #raw < HEADER_BYTES or string.sub(raw, 23, 26) == NO_EXTRA then return FLOWS.PLAIN end
  local text = string.sub(raw, 27, 26 + struct.unpack('<I4', raw, 23))
  if not (string.find(text, '"gr":', 1, true) or string.find(text, '"pr":', 1, true)) then return FLOWS.PLAIN end
  local is_read, extra = pcall(cjson.decode, text)
  return is_read and type(extra) == 'table' and FLOWS.of(extra) or FLOWS.PLAIN
end

function FLOWS.group_of(flow) return string.sub(flow, 3) end

-- The limits of a group by the settings of its topic: how many of its jobs may be reserved, its rate, nil for no limit;
-- and its weight.
function FLOWS.limits_of(settings, group)
  local limits = group ~= '' and settings.li
  if not limits then return nil, nil, 1 end
  local own, each = limits.s and limits.s[group] or {}, limits.g or {}
  return own.n or each.n, own.r or each.r, own.w or 1
end

-- What `groups` has for a group, as a table, the same one each time in a call.
function FLOWS.read(group)
  FLOWS.states = FLOWS.states or {}
  local state = FLOWS.states[group]
  if not state then
    local entry = redis.call('HGET', topic_key('groups'), group)
    local live, reserved, flags, hold = string.match(entry or '', '^(%d+) (%d+) (%d) ?(.*)$')
    flags = (tonumber(flags) or 0) % FLOWS.MARKED
    state = { live = tonumber(live) or 0, reserved = tonumber(reserved) or 0, flags = flags, hold = hold or '' }
    FLOWS.states[group] = state
  end
  return state
end

-- Have a changed entry stored at the end of the call: lib/calls.lua calls FLOWS.store.
function FLOWS.write(state) state.is_changed = true end

function FLOWS.store()
  local stored, gone = {}, {}
  for group, state in pairs(FLOWS.states) do
    if state.is_changed and state.live <= 0 and state.flags == 0 then
      gone[#gone + 1] = group
    elseif state.is_changed then
      local numbers = string.format('%.0f %.0f %d ', math.max(state.live, 0), math.max(state.reserved, 0), state.flags)
      stored[#stored + 1], stored[#stored + 2] = group, numbers .. state.hold
    end
  end
  local most = FLOWS.MOST_STORED
  for from = 1, #stored, 2 * most do
    set_fields(topic_key('groups'), { unpack(stored, from, math.min(from + 2 * most - 1, #stored)) })
  end
  for from = 1, #gone, most do
    redis.call('HDEL', topic_key('groups'), unpack(gone, from, math.min(from + most - 1, #gone)))
  end
  FLOWS.states = nil
end

-- A job with this extra is live now: it was put, or redriven.
function FLOWS.joined(extra)
  if not (extra.gr or extra.pr) then return end
  local group = FLOWS.group_of(FLOWS.of(extra))
  local state = FLOWS.read(group)
  state.live = state.live + 1
  FLOWS.write(state)
end

-- Nothing but limits was found by a pop before: now there may be something.
function FLOWS.wake_limited()
  if redis.call('ZREM', topic_key('limited'), '') == 1 then wake_consumers() end
end

-- Let the blocked flows of a group take turns again; `state` is changed, not written.
function FLOWS.unblock(group, state)
  if state.flags < FLOWS.BLOCKED then return end
  state.flags = state.flags - FLOWS.BLOCKED
  local turns, names = topic_key('turns'), {}
  for priority = 0, 9 do names[priority + 1] = priority .. ' ' .. group end
  for index, turn in ipairs(redis.call('ZMSCORE', turns, unpack(names))) do
    if tonumber(turn or 0) >= FLOWS.BAND then
      redis.call('ZADD', turns, FLOWS.time_to_join((1 - index) * FLOWS.BAND), names[index])
    end
  end
  redis.call('ZREM', topic_key('limited'), group)
  FLOWS.wake_limited()
end

-- A live job that waited is not live any more, or leaves its group.
function FLOWS.left(id, extra)
  if not (extra.gr or extra.pr) then return end
  local group = FLOWS.group_of(FLOWS.of(extra))
  local state = FLOWS.read(group)
  state.live = state.live - 1
  local has_held = state.hold == id
  if has_held then state.hold = '' end
  if has_held or state.live <= 0 then FLOWS.unblock(group, state) end
  FLOWS.write(state)
end

-- Whether two jobs count for the same entry of `groups`.
function FLOWS.are_of_one_group(extra, other)
  if not (extra.gr or extra.pr) or not (other.gr or other.pr) then return false end
  return FLOWS.group_of(FLOWS.of(extra)) == FLOWS.group_of(FLOWS.of(other))
end

-- The same by its record, which may be damaged.
function FLOWS.left_raw(id, raw)
  if FLOWS.of_raw(raw) ~= FLOWS.PLAIN then FLOWS.left(id, read_extra(raw)) end
end

-- The deliveries of `count` jobs ended; `mark` is the third word that REQUESTS had for them. `are_over`: the jobs ended, too.
function FLOWS.ended(mark, count, are_over)
  if string.sub(mark, 1, 1) == '=' then
    local group = string.sub(mark, 2)
    local state = FLOWS.read(group)
    if group ~= '' then state.reserved = state.reserved - count end
    if are_over then state.live = state.live - count end
    FLOWS.unblock(group, state)
    FLOWS.write(state)
  end
  FLOWS.wake_limited()
end

-- Whether jobs of the group are handed out one after the other.
function FLOWS.is_strict(settings, group) return FLOWS.limits_of(settings, group) == 1 end

-- A job whose delivery has ended, but which has not, keeps the place of its group with strict order until it is handed out
-- again.
function FLOWS.keep_place(settings, id, extra)
  if not (extra.gr and settings.li) then return false end
  local group = FLOWS.group_of(FLOWS.of(extra))
  if not FLOWS.is_strict(settings, group) then return false end
  local state = FLOWS.read(group)
  if state.hold ~= '' then return false end
  state.hold = id
  FLOWS.write(state)
  return true
end

-- The time of the flow that has become busy last in the band that begins there, or of a later one that was blocked.
function FLOWS.newest(begin) return tonumber(redis.call('HGET', topic_key('turns/newest'), begin) or begin) end

-- When a flow that becomes busy, or is not held back any more, has its turn, in the band that begins there: behind all that
-- became busy before, so that none of them waits for ever.
function FLOWS.time_to_join(begin)
  local last = string.format('(%.0f', begin + FLOWS.BAND)
  local first = redis.call('ZRANGE', topic_key('turns'), begin, last, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local newest = FLOWS.newest(begin)
  local next_turn = tonumber(first[2] or newest)
  local time = math.min(math.max(next_turn + FLOWS.COST / 2, newest) + 1, next_turn + FLOWS.COST - 1)
  redis.call('HSET', topic_key('turns/newest'), begin, string.format('%.0f', time))
  return time
end

-- Have a flow, which has a new ready job, take turns. The job may be the one for which its group waits.
function FLOWS.take_turns(flow)
  local turn = tonumber(redis.call('ZSCORE', topic_key('turns'), flow) or nil)
  if turn and turn < FLOWS.BAND then return end
  local group = FLOWS.group_of(flow)
  local state = turn and FLOWS.read(group)
  if turn and state.flags >= FLOWS.BLOCKED then
    if state.hold == '' then return end
    FLOWS.unblock(group, state)
    FLOWS.write(state)
    return
  end
  -- It has no turn, or is blocked although its group does not know it, when another program has changed that.
  redis.call('ZADD', topic_key('turns'), FLOWS.time_to_join(-tonumber(string.sub(flow, 1, 1)) * FLOWS.BAND), flow)
end

-- The first and the last position of a slot.
function FLOWS.positions(slot)
  local first = FLOWS.FIRST + slot * FLOWS.WIDTH
  return first, first + FLOWS.WIDTH - 1
end

-- The slot of a flow; `makes` it if it has none. Nil when there is none.
function FLOWS.slot(flow, makes)
  local flows = topic_key('flows')
  FLOWS.slots = FLOWS.slots or {}
  local slot = FLOWS.slots[flow] or tonumber(redis.call('HGET', flows, flow) or nil)
  FLOWS.slots[flow] = slot
  if slot or not makes then return slot end
  slot = tonumber(redis.call('ZPOPMIN', topic_key('flows/free'))[1] or redis.call('HLEN', flows))
  if slot >= FLOWS.MOST then return nil end
  redis.call('HSET', flows, flow, slot)
  FLOWS.slots[flow] = slot
  return slot
end

-- A flow has no ready jobs, and its turn has come: forget it.
function FLOWS.forget(flow)
  redis.call('ZREM', topic_key('turns'), flow)
  local slot = FLOWS.slot(flow)
  if not slot then return end
  FLOWS.slots[flow] = nil
  redis.call('HDEL', topic_key('flows'), flow)
  if redis.call('EXISTS', topic_key('flows')) == 0 then
    redis.call('DEL', topic_key('flows/free'), topic_key('turns/newest'))
  else
    redis.call('ZADD', topic_key('flows/free'), slot, slot)
  end
end

-- Add jobs to the Ready list, each behind those of its flow; plain ones after `position`. Returns the new last position of
-- these. `flows` are those of the ids, in their order; without them the records say it. A flow for which there is no slot
-- has its job wait for a while longer. Bound: the ids, at most 2000, and their records unless `flows` are given.
function FLOWS.append(ids, position, flows)
  local members, names, of_flow, later = {}, {}, {}, {}
  for index, id in ipairs(ids) do
    local flow = flows and flows[index] or not flows and FLOWS.of_raw(redis.call('HGET', POOL, id))
    if flow == FLOWS.PLAIN then
      position = position + 1
      members[#members + 1], members[#members + 2] = position, id
    else
      if not of_flow[flow] then
        of_flow[flow] = {}
        names[#names + 1] = flow
      end
      table.insert(of_flow[flow], id)
    end
  end
  for _, flow in ipairs(names) do
    local slot = FLOWS.slot(flow, true)
    if slot then
      local first, last = FLOWS.positions(slot)
      local place = redis.call('ZRANGE', READY, last, first, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
      place = place and tonumber(place) or first + FLOWS.WIDTH / 2
      for _, id in ipairs(of_flow[flow]) do
        place = math.min(place + 1, last)
        members[#members + 1], members[#members + 2] = place, id
      end
      FLOWS.take_turns(flow)
    else
      for _, id in ipairs(of_flow[flow]) do
        later[#later + 1], later[#later + 2] = now_ms() + FLOWS.TRY_AGAIN_MS, id
      end
    end
  end
  if #members > 0 then redis.call('ZADD', READY, unpack(members)) end
  if #later > 0 then
    redis.call('ZADD', DELAY, unpack(later))
    schedule(later[1])
  end
  redis.call('ZREM', topic_key('limited'), '')
  return position
end

-- Put one job at the head of its flow; if there is no slot for that, FLOWS.append has it wait.
function FLOWS.prepend(id)
  local flow = FLOWS.of_raw(redis.call('HGET', POOL, id))
  local slot = flow ~= FLOWS.PLAIN and FLOWS.slot(flow, true)
  if not slot and flow ~= FLOWS.PLAIN then return FLOWS.append({ id }, 0, { flow }) end
  local first, last = FLOWS.PLAIN_FROM, '+inf'
  if slot then first, last = FLOWS.positions(slot) end
  local place = redis.call('ZRANGE', READY, first, last, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  place = place and math.max(tonumber(place) - 1, first) or slot and first + FLOWS.WIDTH / 2 or 0
  redis.call('ZADD', READY, place, id)
  if slot then FLOWS.take_turns(flow) end
  redis.call('ZREM', topic_key('limited'), '')
end

-- The ids of the first ready jobs of a flow.
function FLOWS.first(flow, most)
  local first, last = FLOWS.PLAIN_FROM, '+inf'
  if flow ~= FLOWS.PLAIN then
    local slot = FLOWS.slot(flow)
    if not slot then return {} end
    first, last = FLOWS.positions(slot)
  end
  return redis.call('ZRANGE', READY, first, last, 'BYSCORE', 'LIMIT', 0, most)
end

-- The first ready job in a range of positions, nil for none; how many there are; when the first one was due, -1 when its
-- record cannot be read; and that record, '' for none.
function FLOWS.ready_between(from, to)
  local id = redis.call('ZRANGE', READY, from, to, 'BYSCORE', 'LIMIT', 0, 1)[1]
  if not id then return nil end
  local raw, due = redis.call('HGET', POOL, id) or '', -1
  if #raw >= HEADER_BYTES then due = select(2, struct.unpack('<I6I6', raw)) end
  return id, redis.call('ZCOUNT', READY, from, to), due, raw
end

-- When the job was due that has been ready longest, -1 for none, and the bytes of the records that were read. `of_topic` is
-- what the keys of the topic begin with. With several flows those are the heads of at most `most` of them: the ones whose
-- turn is next, and the ones that limits hold back. Bound: `most` flows, and 1 MiB of records or one.
function FLOWS.oldest_due(of_topic, most)
  local call, ready, pool = redis.call, of_topic .. 'ready', of_topic .. 'pool'
  local oldest, bytes = math.huge, 0
  local function look_at(id)
    local raw = id and bytes < FLOWS.MOST_BYTES and call('HGET', pool, id)
    if not raw or #raw < HEADER_BYTES then return end
    local _, due = struct.unpack('<I6I6', raw)
    oldest, bytes = math.min(oldest, due), bytes + #raw
  end
  local first = call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  look_at(first[1])
  if first[2] and tonumber(first[2]) < FLOWS.PLAIN_FROM then
    local turns, names, is_named = of_topic .. 'turns', {}, {}
    for _, reverse in ipairs({ false, true }) do
      local half = math.floor(most / 2)
      for _, flow in ipairs(call('ZRANGE', turns, 0, half - 1, unpack(reverse and { 'REV' } or {}))) do
        if not is_named[flow] and flow ~= FLOWS.PLAIN then names[#names + 1] = flow end
        is_named[flow] = true
      end
    end
    look_at(call('ZRANGE', ready, FLOWS.PLAIN_FROM, '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1])
    for _, slot in ipairs(#names > 0 and call('HMGET', of_topic .. 'flows', unpack(names)) or {}) do
      local from, to = FLOWS.positions(tonumber(slot or FLOWS.MOST))
      if slot then look_at(call('ZRANGE', ready, from, to, 'BYSCORE', 'LIMIT', 0, 1)[1]) end
    end
  end
  return oldest < math.huge and oldest or -1, bytes
end

-- Hold a flow back until its group is unblocked; at `room_at` ms its rate has room again, nil when that is not the reason.
function FLOWS.block(flow, turn, group, state, room_at)
  local priority = tonumber(string.sub(flow, 1, 1))
  redis.call('ZADD', topic_key('turns'), turn + (2 * priority + 1) * FLOWS.BAND, flow)
  -- Its band may have no other flow now. Its time goes on, or this one would wait until those that come have caught up.
  local begin = -priority * FLOWS.BAND
  if turn > FLOWS.newest(begin) then redis.call('HSET', topic_key('turns/newest'), begin, string.format('%.0f', turn)) end
  redis.call('ZADD', topic_key('limited'), room_at or FLOWS.NEVER, group)
  if room_at then schedule(room_at) end
  if state.flags < FLOWS.BLOCKED then state.flags = state.flags + FLOWS.BLOCKED end
  FLOWS.write(state)
end

-- How many jobs of a group may be handed out now, infinite for any number, and the id of the only one that may be, nil for
-- those whose turn it is. Or 0, by which limit they are held back (paused, order, max_in_flight, rate), and when a rate has
-- room again. `only_looks`: see RATE.window.
function FLOWS.allowed(settings, group, state, now, only_looks)
  if group == '' then return math.huge end
  local most, rate = FLOWS.limits_of(settings, group)
  local room, only = most and most - state.reserved or math.huge, nil
  if state.flags % 2 == 1 then return 0, 'paused' end
  if state.hold ~= '' and most == 1 then
    if not redis.call('ZSCORE', READY, state.hold) then return 0, 'order' end
    only = state.hold
  end
  if room <= 0 then return 0, 'max_in_flight' end
  if rate then
    state.window = RATE.window(topic_key('rate/' .. group), rate, now, only_looks)
    if state.window.total >= rate.c then return 0, 'rate', RATE.room_at(state.window, rate) end
    room = math.min(room, rate.c - state.window.total)
  end
  return room, only
end

-- Before the first search of a call: plain jobs, which are put without a look at the others, take turns with them.
function FLOWS.begin_turns()
  FLOWS.turns = 0
  local last = redis.call('ZRANGE', READY, -1, -1, 'WITHSCORES')[2]
  if last and tonumber(last) >= FLOWS.PLAIN_FROM then FLOWS.take_turns(FLOWS.PLAIN) end
end

-- Find the jobs that are handed out next, at most `most`, all of the flow whose turn it is and as many as it may have in a
-- row. Returns their ids and what FLOWS.take needs, or nil and why there are none: none is `ready`, `limited`, or `more`
-- when they must be searched further. Bound: `most` jobs, and MOST_TURNS in all searches of a call, also of flows that are
-- held back or have no jobs.
function FLOWS.next(settings, most, now)
  while FLOWS.turns < FLOWS.MOST_TURNS do
    FLOWS.turns = FLOWS.turns + 1
    local first = redis.call('ZRANGE', topic_key('turns'), 0, 1, 'WITHSCORES')
    local flow, turn, next_turn = first[1], tonumber(first[2]), tonumber(first[4] or FLOWS.NEVER)
    if not flow then
      -- If there are ready jobs, another program has removed the turns.
      local strays = redis.call('ZRANGE', READY, 0, FLOWS.MOST_LOOKED_AT - 1)
      if #strays == 0 then return nil, 'ready' end
      FLOWS.append(strays, 0)
      return nil, 'more'
    end
    if turn >= FLOWS.BAND then return nil, 'limited' end
    local group = FLOWS.group_of(flow)
    local state = FLOWS.read(group)
    local _, _, weight = FLOWS.limits_of(settings, group)
    local found = { flow = flow, turn = turn, cost = math.floor(FLOWS.COST / weight), group = group, state = state }
    local in_a_row = math.max(math.ceil((next_turn - turn) / found.cost), 1)
    local room, only, room_at = FLOWS.allowed(settings, group, state, now)
    local ids = FLOWS.first(flow, math.min(most, in_a_row, math.max(room, 1)))
    if #ids == 0 then
      FLOWS.forget(flow)
    elseif room == 0 then
      FLOWS.block(flow, turn, group, state, room_at)
    else
      return only and { only } or ids, found
    end
  end
  return nil, 'more'
end

-- Count jobs that are handed out, of those that FLOWS.next has found.
function FLOWS.take(settings, ids, found, now)
  if #ids == 0 then return end
  local last = (1 - tonumber(string.sub(found.flow, 1, 1))) * FLOWS.BAND - 1
  redis.call('ZADD', topic_key('turns'), math.min(found.turn + #ids * found.cost, last), found.flow)
  if found.group == '' then return end
  local _, rate = FLOWS.limits_of(settings, found.group)
  local state = found.state
  state.reserved = state.reserved + #ids
  for _, id in ipairs(ids) do
    if state.hold == id then state.hold = '' end
  end
  FLOWS.write(state)
  if rate then RATE.note(topic_key('rate/' .. found.group), state.window, rate, #ids, now) end
end

-- How many jobs the limits of the topic let a pop take, at most `wanted`; the window of its rate, if it has one; and when
-- that has room again, if it has none.
function FLOWS.room(settings, wanted, now)
  local limits, window, room_at = settings.li, nil, nil
  if limits.n then wanted = math.min(wanted, limits.n - redis.call('ZCARD', RESERVED)) end
  if limits.r then
    window = RATE.window(topic_key('rate/'), limits.r, now)
    if window.total >= limits.r.c then room_at = RATE.room_at(window, limits.r) end
    wanted = math.min(wanted, limits.r.c - window.total)
  end
  return math.max(wanted, 0), window, room_at
end

-- Whether the limits of a topic, nil for none, have room for a delivery now; writes nothing. `of_topic` is what the keys of
-- the topic begin with.
function FLOWS.has_room(limits, of_topic)
  if not limits then return true end
  if limits.n and redis.call('ZCARD', of_topic .. 'reserved') >= limits.n then return false end
  return not limits.r or RATE.window(of_topic .. 'rate/', limits.r, now_ms(), true).total < limits.r.c
end

-- The last time in `limited`, if that is later than it can be: it is from before the clock was set back. Else nil.
function FLOWS.too_late(settings, now)
  local before_never = string.format('(%.0f', FLOWS.NEVER)
  local found = redis.call('ZRANGE', topic_key('limited'), before_never, now, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
  local last = tonumber(found[2] or now)
  if last == now then return nil end
  local limits, longest = settings.li or {}, 0
  local function look_at(each)
    if each and each.r then longest = math.max(longest, each.r.p + RATE.bucket_ms(each.r)) end
  end
  look_at(limits)
  look_at(limits.g)
  for _, own in pairs(limits.s or {}) do look_at(own) end
  return last > now + longest and last or nil
end

-- A pop found nothing but what limits hold back: note that, so that it is woken when there is something.
function FLOWS.wait(settings, room_at, now)
  redis.call('ZADD', topic_key('limited'), room_at or FLOWS.NEVER, '')
  if room_at then schedule(room_at) end
  if FLOWS.too_late(settings, now) then schedule(now) end
end

-- The timer's part: let groups whose rate has room again take turns, and all after a change of the limits. Returns when
-- there is more to do, infinite for never. Bound: `most` of each.
function FLOWS.visit(now, most)
  local limited = topic_key('limited')
  local ended = redis.call('ZRANGE', limited, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
  local too_late = redis.call('EXISTS', limited) == 1 and FLOWS.too_late(stored_settings(), now)
  if too_late then
    for _, group in ipairs(redis.call('ZRANGE', limited, too_late, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, most)) do
      ended[#ended + 1] = group
    end
  end
  for _, group in ipairs(ended) do
    if group == FLOWS.ALL then
      FLOWS.look_again_at_some(most)
      FLOWS.wake_limited()
    elseif group == '' then
      FLOWS.wake_limited()
    else
      FLOWS.look_again(group)
    end
  end
  local first = tonumber(redis.call('ZRANGE', limited, 0, 0, 'WITHSCORES')[2] or FLOWS.NEVER)
  return first < FLOWS.NEVER and first or math.huge
end

-- A step through all groups after a change of the limits. It follows a cursor, as pops may block again what it has let go.
function FLOWS.look_again_at_some(most)
  local groups, steps = topic_key('groups'), topic_key('turns/newest')
  local cursor, entries = unpack(redis.call('HSCAN', groups, redis.call('HGET', steps, 'cursor') or '0', 'COUNT', most))
  for at = 1, #entries, 2 do
    if FLOWS.read(entries[at]).flags >= FLOWS.BLOCKED then FLOWS.look_again(entries[at]) end
  end
  if cursor == '0' then
    redis.call('HDEL', steps, 'cursor')
    redis.call('ZREM', topic_key('limited'), FLOWS.ALL)
  else
    redis.call('HSET', steps, 'cursor', cursor)
  end
end

-- Let a group take turns again: its limits may have changed.
function FLOWS.look_again(group)
  local state = FLOWS.read(group)
  if state.flags >= FLOWS.BLOCKED then
    FLOWS.unblock(group, state)
    FLOWS.write(state)
  else
    redis.call('ZREM', topic_key('limited'), group)
  end
end

-- The limits of the topic have changed.
function FLOWS.limits_changed(now)
  if not FLOWS.exist() then return end
  redis.call('HDEL', topic_key('turns/newest'), 'cursor')
  redis.call('ZADD', topic_key('limited'), now, FLOWS.ALL)
  schedule(now)
end
