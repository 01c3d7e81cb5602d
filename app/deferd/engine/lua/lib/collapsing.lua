-- Puts with options that most do not have: those that collapse with earlier puts of their id.
-- @include record topic tags transitions

local COLLAPSING_PUTS = (function()  -- what is local here does not count among the 200 locals of the library
local KEEP, REPLACE, APPEND, ONLY_LIVE, AFTER, HAS_MAX_WAIT = 1, 2, 3, 4, 8, 16
local CREATED, APPENDED, EXISTS, HELD, TOO_LARGE = 1, 4, -1, -2, -4
local FOLLOWS, FOLLOW_UP_KEPT, FOLLOW_UP_REPLACED, FOLLOW_UP_APPENDED = 5, 6, 7, 8
local MOST_ITEMS = 10000

-- Returns the functions for such puts; it is called only when a job needs them. `script` has the functions of put.lua that
-- they need: complete, enqueue and flush.
return function(now, script)
  local read, write, call = struct.unpack, struct.pack, redis.call
  local complete, enqueue, flush = script.complete, script.enqueue, script.flush
  local here, puts = attached(), {}

  function puts.is_meant(options) return options > REPLACE end

  -- Whether a job that waits was delivered before, to a consumer that ended its delivery. After a redrive it is as new.
  local function was_handed_out(attempts, extra) return attempts > 0 or extra.s end

  -- Limit the due time of a put that has a longest wait: it counts from the first put, which the replaced record
  -- remembers. `old` is that, nil for none. Returns the due time and the rest of the record, which remembers it for the
  -- next put.
  local function within_max_wait(old, due, rest, extra_length)
    local extra = cjson.decode(string.sub(rest, 5, 4 + extra_length))
    local is_read, replaced = pcall(read_record, old or '')
    if not is_read or was_handed_out(replaced.attempts, replaced.extra) then
      extra.w = now + extra.w
    else
      extra.w = replaced.extra.w or replaced.created + extra.w
    end
    if due > extra.w then extra.sh = nil end
    local text = cjson.encode(extra)
    return math.max(math.min(due, extra.w), now), write('<I4', #text) .. text .. string.sub(rest, 5 + extra_length)
  end

  -- Add an item to those collected under an id, which are `bytes` together.
  local function push_item(id, item, bytes)
    call('RPUSH', here.items_key(id), item)
    call('HSET', here.ITEMS, id, string.format('%.0f', bytes + #item))
    here.note_stored()
  end

  -- What the response to an append shows of a record: the item of this put alone, and how many there are.
  local function shown_with(record, item, count)
    local extra = record.extra.y
    record.extra.y, record.rest = count, '[' .. item .. ']'
    local raw = write_record(record)
    record.extra.y, record.rest = extra, '[]'
    return raw
  end

  -- Append a body to a job that waits, or to a follow-up. A job that was put otherwise becomes a collection of its body
  -- and this one. Returns the code, and what the response shows.
  local function append(id, raw, due, terms, item, is_follow_up, state)
    local record = read_record(raw)
    local is_open = record.extra.y == 0
    local count = is_open and call('LLEN', here.items_key(id)) or 1
    local bytes = is_open and tonumber(call('HGET', here.ITEMS, id) or 0) or #record.rest
    if count >= MOST_ITEMS or bytes + #item + count + 2 > terms.z then return TOO_LARGE end
    if not is_open then
      push_item(id, record.rest, 0)
      record.extra.y, record.rest = 0, '[]'
    end
    push_item(id, item, bytes)
    record.extra.w = record.extra.w or (terms.w and record.created + terms.w)
    local placed = due
    if terms.y and count + 1 >= terms.y then due = now end
    due = math.max(math.min(due, record.extra.w or due), now)
    local moves = is_follow_up or state == 'delayed'
    if moves then record.due, record.extra.sh = due, due == placed and terms.sh or nil end
    call('HSET', is_follow_up and here.FOLLOW or POOL, id, write_record(record))
    if moves and not is_follow_up then
      if due <= now then call('ZREM', DELAY, id) end
      enqueue(id, due, here.longest_wait(record.extra))
    end
    return is_follow_up and FOLLOW_UP_APPENDED or APPENDED, shown_with(record, item, count + 1)
  end

  function puts.begin_collection(id, record, item)
    push_item(id, item, 0)
    return CREATED, shown_with(read_record(record), item, 1)
  end

  -- The rest of the record of a new collection, and the length of its extra.
  local function new_collection(terms)
    terms.y, terms.z = 0, nil
    local extra = cjson.encode(terms)
    return write('<I4', #extra) .. extra .. '[]', #extra
  end

  -- Put a job with such options. Returns what `put` does, or nil for `put` to go on with the due time and the rest of
  -- the record that follow, and the first item of a new collection.
  function puts.put(id, options, due, nonce, job_rest, extra_length)
    flush()
    local on_conflict, item = options % ONLY_LIVE, nil
    local old = call('HGET', POOL, id)
    local state = old and state_of(id)
    local is_waiting = state == 'delayed' or state == 'ready'
    local waits = state == 'reserved' and options % (2 * AFTER) >= AFTER
    local follow_up = old and here.follow_up_of(id)
    if waits or on_conflict == APPEND and is_waiting then
      -- An error in the middle of the script would strand the jobs that it has stored before.
      if not pcall(read_extra, old) or follow_up and not pcall(read_extra, follow_up) then return EXISTS end
    end
    if waits and follow_up and on_conflict == KEEP then return FOLLOW_UP_KEPT, follow_up end
    if on_conflict == APPEND then
      if state == 'reserved' and not waits then return HELD end
      local terms = cjson.decode(string.sub(job_rest, 5, 4 + extra_length))
      item = string.sub(job_rest, 5 + extra_length)
      if is_waiting then
        local extra, attempts = read_extra(old), read('<I4', old, 19)
        if not (was_handed_out(attempts, extra) or extra.o) and (extra.y or 0) == 0 then
          return append(id, old, due, terms, item, false, state)
        end
        waits = true  -- it was handed out before, or has a follow-up: this one comes after it
      end
      if waits and follow_up then return append(id, follow_up, due, terms, item, true) end
      if #item + 2 > terms.z then return TOO_LARGE end
      if terms.w then
        terms.w = now + terms.w
        if due > terms.w then due, terms.sh = terms.w, nil end
      end
      if terms.y == 1 then due, terms.sh = now, nil end
      job_rest, extra_length = new_collection(terms)
    elseif options >= HAS_MAX_WAIT then
      local replaced = waits and follow_up or is_waiting and old
      due, job_rest = within_max_wait(replaced, due, job_rest, extra_length)
      extra_length = read('<I4', job_rest)
    end
    if not waits then return nil, nil, due, job_rest, extra_length, item end
    local record = write('<I6I6I6I4', now, due, nonce, 0) .. (complete(job_rest, extra_length))
    call('HSET', here.FOLLOW, id, record)
    here.note_stored()
    if follow_up then
      here.drop_items({ id })
    else
      local holder = read_record(old)
      holder.extra.o = 1
      call('HSET', POOL, id, write_record(holder))
    end
    if item then
      push_item(id, item, 0)
      record = shown_with(read_record(record), item, 1)
    end
    return follow_up and FOLLOW_UP_REPLACED or FOLLOWS, record
  end

  -- What remains of the options for a put that is no follow-up: on conflict, and whether only a live job is one.
  function puts.conflict(options, first_item)
    return first_item and 0 or options % ONLY_LIVE, options % (2 * ONLY_LIVE) >= ONLY_LIVE
  end

  -- The record of a follow-up that was kept, with its collected items as its body.
  function puts.shown(id, record) return here.is_open(record) and here.with_items(id, record) or record end

  return puts
end
end)()
