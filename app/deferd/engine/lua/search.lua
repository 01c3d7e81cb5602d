-- Return those of a topic's jobs that match, of one state in the order of list.lua or of some ids. Read-only.
-- @include topic record transitions paging
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- ARGV[2] a JSON object: most jobs to look at (`most`) and to return (`limit`); the state, and with it where the page
--   before
--   ended (`score` and `id`; left out to begin); and what must hold of a job: `from` and `before`, ms of its due time
--   (before: earlier than that), `prefix` of its id, `error`: a part of its last error, `tag`, `reason` why it is dead
-- ARGV[3..] ids, to look at these; then `state` is what their state must be, if it is there
-- Returns { jobs looked at, 1 when there may be more of the state or ids, score and id of the last job looked at, then
-- five
--   for each job: id | state | record | score (0 when ready) | consumer or '' }
-- Bound: `most` jobs or ids; the caller sends at most 1000. A page ends early when 1 MiB of records was read.
local MOST_BYTES = 1024 * 1024
local options = cjson.decode(ARGV[2])

local function range()
  local key = STATE_SETS[options.state]
  local low, high = 0, redis.call('ZCARD', key)
  if options.state == 'delayed' and options.from then
    low = redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', options.from))
  end
  if options.state == 'delayed' and options.before then
    high = redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', options.before))
  end
  local first = options.score and math.max(rank_after(key, options.score, options.id), low) or low
  if first >= high then return {}, {}, false end
  local members = redis.call('ZRANGE', key, first, math.min(first + options.most, high) - 1, 'WITHSCORES')
  local ids, scores = {}, {}
  for at = 1, #members, 2 do
    ids[#ids + 1], scores[#scores + 1] = members[at], members[at + 1]
  end
  return ids, scores, first + #ids < high
end

local function has_tag(id)
  local tags = redis.call('HGET', TAGGED, id)
  return tags and string.find(' ' .. tags .. ' ', ' ' .. options.tag .. ' ', 1, true)
end

local function matches(id, raw)
  if #raw < 26 then return false end
  local _, due = struct.unpack('<I6I6', raw)
  if options.from and due < options.from or options.before and due >= options.before then return false end
  if not (options.error or options.reason) then return true end
  local is_read, extra = pcall(read_extra, raw)
  if not is_read then return false end
  if options.reason and extra.d ~= options.reason then return false end
  return not options.error or (extra.e and string.find(extra.e, options.error, 1, true) ~= nil)
end

local ids, scores, more = {}, {}, false
if #ARGV > 2 then
  for at = 3, #ARGV do
    ids[at - 2] = ARGV[at]
  end
else
  ids, scores, more = range()
end

local reply, bytes, looked, found = { 0, 0, '', '' }, 0, 0, 0
for index, id in ipairs(ids) do
  if bytes >= MOST_BYTES or found == options.limit then break end
  looked = index
  local is_meant = not options.prefix or string.sub(id, 1, #options.prefix) == options.prefix
  if is_meant and options.tag then is_meant = has_tag(id) end
  local raw = is_meant and redis.call('HGET', POOL, id)
  if raw then bytes = bytes + #raw end
  if raw and matches(id, raw) then
    local state, score = options.state, scores[index]
    if not score then
      state, score = state_of(id)
    end
    if not options.state or state == options.state then
      found = found + 1
      local here = attached()
      if here.may_exist() and redis.call('HEXISTS', here.ITEMS, id) == 1 and here.is_open(raw) then
        raw = here.with_items(id, raw)
        bytes = bytes + #raw
      end
      for _, value in ipairs({ id, state, raw, state ~= 'ready' and score or 0, redis.call('HGET', HOLDERS, id) or '' }) do
        reply[#reply + 1] = value
      end
    end
  end
end
reply[1], reply[2] = looked, (more or looked < #ids) and 1 or 0
reply[3], reply[4] = scores[looked] or '', ids[looked] or ''
return reply
