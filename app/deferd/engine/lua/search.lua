-- Return those of a topic's jobs that match, of one state in the order of list.lua or of some ids. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- ARGV[2] a JSON object: most jobs to look at (`most`) and to return (`limit`); the state, and with it where the page
--   before
--   ended (`score` and `id`; left out to begin); and what must hold of a job: `from` and `before`, ms of its due time
--   (before: earlier than that), `prefix` of its id, `error`: a part of its last error, `tag`, `group`, `reason` why it is dead,
--   `retrying`: true when it must have had an attempt; `reverse` true: the opposite order, with the state
-- ARGV[3..] ids, to look at these; then `state` is what their state must be, if it is there
-- Returns { jobs looked at, 1 when there may be more of the state or ids, score and id of the last job looked at, of
--   delayed jobs how many are on the shelf, else 0, then six for each job:
--   id | state | record | score (0 when ready) | consumer or '' | ms at which it was handed out, 0 when that is not known
--   or it is not reserved }
-- Bound: `most` jobs or ids; the caller sends at most 250. A page ends early when 1 MiB of records was read, some more if
--   their sizes differ much, or when 1 MiB was found.
local options = cjson.decode(ARGV[2])

-- The ids of one page of the state, and whether there are more behind it. Without scores: these take as long as the ids,
-- and few are needed.
local function range(key)
  local low, high = 0, redis.call('ZCARD', key)
  if options.state == 'delayed' and options.from then
    low = redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', options.from))
  end
  if options.state == 'delayed' and options.before then
    high = redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', options.before))
  end
  if options.reverse then
    local beyond = options.score and math.min(rank_before(key, options.score, options.id), high) or high
    if beyond <= low then return {}, false end
    local first = math.max(beyond - options.most, low)
    local members, ids = redis.call('ZRANGE', key, first, beyond - 1), {}
    for at = #members, 1, -1 do
      ids[#ids + 1] = members[at]
    end
    return ids, first > low
  end
  local first = options.score and math.max(rank_after(key, options.score, options.id), low) or low
  if first >= high then return {}, false end
  local ids = redis.call('ZRANGE', key, first, math.min(first + options.most, high) - 1)
  return ids, first + #ids < high
end

-- The longest part of a text that JSON writes as it is can be looked for without reading the record: most jobs of a
-- search don't match.
local plain_part = ''
for part in string.gmatch(options.error or '', '[%w %.,:;_=()+-]+') do
  if #part > #plain_part then plain_part = part end
end

-- Whether the extra of a record may have the part. Where the body, which follows, is larger, only the extra is searched.
local function may_have_error(raw)
  local length = struct.unpack('<I4', raw, 23)
  local searched, from = raw, 27
  if #raw > 2 * length then
    searched, from = string.sub(raw, 27, 26 + length), 1
  end
  return length > 0 and string.find(searched, plain_part, from, true)
end

local function matches(raw)
  if options.from or options.before then
    local _, due = struct.unpack('<I6I6', raw)
    if options.from and due < options.from or options.before and due >= options.before then return false end
  end
  if options.retrying then
    local _, attempts = read_nonce_and_attempts(raw)
    if attempts == 0 then return false end
  end
  if options.group and FLOWS.group_of(FLOWS.of_raw(raw)) ~= options.group then return false end
  if not (options.error or options.reason) then return true end
  if options.error and not may_have_error(raw) then return false end
  local is_read, extra = pcall(read_extra, raw)
  if not is_read then return false end
  if options.reason and extra.d ~= options.reason then return false end
  return not options.error or (extra.e and string.find(extra.e, options.error, 1, true) ~= nil)
end

local key = #ARGV == 2 and set_of(options.state)
local ids, more = {}, false
if key then
  ids, more = range(key)
else
  for at = 3, #ARGV do
    ids[at - 2] = ARGV[at]
  end
end

-- The ids whose records are read, and which of `ids` they are.
local meant, places = ids, nil
if options.prefix or options.tag then
  meant, places = {}, {}
  local tags_of = options.tag and #ids > 0 and redis.call('HMGET', TAGGED, unpack(ids)) or {}
  local prefix, length = options.prefix or '', #(options.prefix or '')
  for index, id in ipairs(ids) do
    local tags = not options.tag or tags_of[index]
    if tags and options.tag then tags = string.find(' ' .. tags .. ' ', ' ' .. options.tag .. ' ', 1, true) end
    if tags and string.sub(id, 1, length) == prefix then
      meant[#meant + 1], places[#places + 1] = id, index
    end
  end
end

local on_shelf = key and options.state == 'delayed' and shelved_jobs() or 0
local reply, bytes, found, is_full = { 0, 0, '', '', on_shelf }, 0, 0, false
local looked = read_records(meant, function(index, raw)
  if not matches(raw) then return end
  local id, state, score = meant[index], options.state, nil
  if key then
    score = state ~= 'ready' and redis.call('ZSCORE', key, id)
  else
    state, score = state_of(id)
    if options.state and state ~= options.state then return end
  end
  local here = attached()
  if here.may_exist() and redis.call('HEXISTS', here.ITEMS, id) == 1 and here.is_open(raw) then
    raw = here.with_items(id, raw)
  end
  local consumer, since = '', 0
  if state == 'reserved' then
    consumer, since = redis.call('HGET', HOLDERS, id) or '', HAND_OUT.read(id, raw, score)
  end
  for _, value in ipairs({ id, state, raw, state ~= 'ready' and score or 0, consumer, since }) do
    reply[#reply + 1] = value
  end
  found, bytes = found + 1, bytes + #raw
  is_full = found == options.limit or bytes >= MOST_BYTES
  return is_full
end)
if looked == #meant and not is_full then
  looked = #ids
elseif places then
  looked = places[looked]
end
reply[1], reply[2] = looked, (more or looked < #ids) and 1 or 0
reply[3], reply[4] = key and ids[looked] and redis.call('ZSCORE', key, ids[looked]) or '', ids[looked] or ''
return reply
