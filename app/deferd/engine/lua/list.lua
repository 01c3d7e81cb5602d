-- Return one page of a topic's jobs in one state, ordered by due time, lease end or retention end; ready jobs in the
-- order in which they will be handed out. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] state
-- ARGV[3] score of the last page's last job (a ready job's position), '' to begin | ARGV[4] its id
-- ARGV[5] most jobs | ARGV[6] '1': in the opposite order, '' or left out: not
-- Returns { 1 when there is more, else 0, score and id of the last job, of delayed jobs how many are on the shelf, else 0,
--   then five for each job:
--   id | record | score | consumer or '' | ms at which it was handed out, 0 when that is not known or it is not reserved };
--   for ready jobs the score is the position. Jobs that change their state meanwhile may be missed or returned twice.
-- Bound: ARGV[5] jobs; the caller sends at most 100. A page ends early when its records reach 1 MiB.
local state, limit = ARGV[2], tonumber(ARGV[5])
local reply = { 0, '', '', state == 'delayed' and shelved_jobs() or 0 }
local MOST_BYTES = 1024 * 1024
local bytes = 0

local function add(id, score)
  local record = redis.call('HGET', POOL, id)
  if record then
    local here = attached()
    if here.may_exist() and redis.call('HEXISTS', here.ITEMS, id) == 1 and here.is_open(record) then
      record = here.with_items(id, record)
    end
    bytes = bytes + #record
    reply[#reply + 1] = id
    reply[#reply + 1] = record
    reply[#reply + 1] = score
    reply[#reply + 1] = state == 'reserved' and redis.call('HGET', HOLDERS, id) or ''
    reply[#reply + 1] = state == 'reserved' and HAND_OUT.read(id, record, score) or 0
  end
end

local key = set_of(state)
local members = {}
local first, last, step  -- of members
if ARGV[6] == '1' then
  local beyond = ARGV[3] == '' and redis.call('ZCARD', key) or rank_before(key, ARGV[3], ARGV[4])
  if beyond > 0 then members = redis.call('ZRANGE', key, math.max(beyond - limit - 1, 0), beyond - 1, 'WITHSCORES') end
  first, last, step = #members - 1, 1, -2
else
  local from = ARGV[3] == '' and 0 or rank_after(key, ARGV[3], ARGV[4])
  members = redis.call('ZRANGE', key, from, from + limit, 'WITHSCORES')
  first, last, step = 1, #members, 2
end
local count = 0
for at = first, last, step do
  if count == limit or bytes >= MOST_BYTES then
    reply[1] = 1
    break
  end
  count = count + 1
  add(members[at], members[at + 1])
  reply[2], reply[3] = members[at + 1], members[at]
end
return reply
