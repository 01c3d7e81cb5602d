-- What happened to the jobs of a topic, if its settings have `ev`, the number of events to keep.
--   events/log LIST of events, the oldest first (engine/events.py): "Kat id rest", K one of
--     P put: due, r if it replaced a job       C changed: due, state, f if this is of its follow-up
--     R ready: due                             O popped: attempt, lease end, consumer
--     L released: attempt, due, error          S snoozed: attempt, due
--     G progress: attempt, JSON, if it is short
--     B returned to the queue                  E lease ended: attempt, why, consumer
--     F finished: attempt, 1 if it is kept     D dead: attempts, reason, 1 if it is kept, error
--     X cancelled: state, why                  V redriven
--     Z deleted, with - for the id: count, state, why
--     Times are ms. A consumer or error, which may have spaces, is last.
--   events/seq HASH  seq: the number of the last event, from 1; since: when the first one happened, ms
-- The events of a topic are in the order in which they happened, and each is stored in the call that did it.
-- @include clock topic

-- How many events the topic keeps, nil for none. Scripts that read the settings for something else take `ev` of these.
local function events_to_keep()
  local settings = redis.call('HGET', SETTINGS, TOPIC)
  if settings and settings ~= '' and string.find(settings, '"ev":', 1, true) then return cjson.decode(settings).ev end
end

-- Make the list of the topics that have events again, in place of a key of the wrong type, which another program has
-- made. Bound: all topics of the shard, which the settings say.
local function relist_event_topics(listed, all_settings)
  redis.call('DEL', listed)
  local fields = redis.call('HGETALL', all_settings)
  for at = 1, #fields, 2 do
    if string.find(fields[at + 1], '"ev":', 1, true) then redis.call('ZADD', listed, 0, fields[at]) end
  end
end

-- Append events, "Kat id rest", to a topic that keeps so many. Keys of the wrong type, which another program has made,
-- are deleted: they must not stop any call. Bound: the events, at most 1000.
local function note_events(most, events)
  if #events == 0 then return end
  local log, seq = topic_key('events/log'), topic_key('events/seq')
  local last = redis.pcall('HINCRBY', seq, 'seq', #events)
  local length = redis.pcall('RPUSH', log, unpack(events))
  if type(last) ~= 'number' or type(length) ~= 'number' then
    redis.call('DEL', log, seq)
    return
  end
  if last == #events then
    redis.call('HSET', seq, 'since', now_ms())
    local listed = of_shard('events/topics')
    if type(redis.pcall('ZADD', listed, 0, TOPIC)) ~= 'number' then relist_event_topics(listed, SETTINGS) end
  end
  if length > most then redis.call('LTRIM', log, -most, -1) end
end

-- An event now: its kind, the id, and the others in their order. Of an error, which is the last, it has the first line,
-- at most 120 bytes of it, of which the last may be of half a character.
local function event_text(kind, id, ...)
  local parts = { kind .. now_ms(), id, ... }
  if kind == 'L' or kind == 'D' then parts[#parts] = string.sub(string.match(parts[#parts], '^[^\r\n]*'), 1, 120) end
  return table.concat(parts, ' ')
end

-- Append one event now, see event_text, if the topic keeps events.
local function note_event(kind, id, ...)
  local most = events_to_keep()
  if most then note_events(most, { event_text(kind, id, ...) }) end
end

-- The event of a put that has stored `record`, with the code that it returns.
local function event_of_put(now, id, code, record)
  local replaced, appended, follows = 3, 4, 5
  local _, due = struct.unpack('<I6I6', record)
  if code < appended then return string.format('P%.0f %s %.0f%s', now, id, due, code == replaced and ' r' or '') end
  local state = code >= follows and 'reserved f' or due > now and 'delayed' or 'ready'
  return string.format('C%.0f %s %.0f %s', now, id, due, state)
end
