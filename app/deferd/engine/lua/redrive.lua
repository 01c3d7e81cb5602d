-- Make dead jobs ready again: due now, no attempts or snoozes, old receipts void, a new deadline; the last error
-- stays readable.
-- @include clock topic record transitions paging time_limits waiting
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] most jobs to redrive: of the ids, if there are any, else of those that are dead longest
-- ARGV[3] only jobs that are dead for this reason, '' for any | ARGV[4] only jobs with this tag, '' for any
-- ARGV[5] score of the last job that the step before looked at, '' to begin | ARGV[6] its id | ARGV[7..] ids
-- Returns { how many are ready now, 1 when there may be more to take, score and id of the last job looked at }
--   Ids that are not dead, jobs that do not match, and those that cannot be read are skipped.
-- Bound: the ids; without ids MOST_LOOKED_AT jobs or, without a reason, ARGV[2]. The caller sends at most 1000.
local MOST_LOOKED_AT = 1000
local now, limit, last = now_ms(), tonumber(ARGV[2]), last_position()
local reason, tag = ARGV[3], ARGV[4]
local ids, scores, more = {}, {}, 0
if #ARGV <= 6 then
  local from = ARGV[5] == '' and 0 or rank_after(DEAD, ARGV[5], ARGV[6])
  local most = reason == '' and limit or MOST_LOOKED_AT
  local members = redis.call('ZRANGE', DEAD, from, from + most - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    ids[#ids + 1], scores[#scores + 1] = members[at], members[at + 1]
  end
  more = #ids == most and 1 or 0
else
  for at = 7, #ARGV do
    ids[at - 6] = ARGV[at]
  end
end

local function has_tag(id)
  local tags = redis.call('HGET', TAGGED, id)
  return tags and string.find(' ' .. tags .. ' ', ' ' .. tag .. ' ', 1, true)
end

local redriven, looked = {}, 0
for index, id in ipairs(ids) do
  if #redriven == limit then
    more = 1
    break
  end
  looked = index
  local is_meant = redis.call('ZSCORE', DEAD, id) and (tag == '' or has_tag(id))
  -- An error for one that cannot be read would strand those before it.
  local is_read, record = pcall(read_record, is_meant and redis.call('HGET', POOL, id) or '')
  if is_read and (reason == '' or record.extra.d == reason) then
    redis.call('ZREM', DEAD, id)
    void_receipts(record)
    record.attempts = 0
    record.due = now
    record.extra.d, record.extra.s, record.extra.v, record.extra.sh = nil, nil, nil, nil
    redis.call('HSET', POOL, id, write_record(record))
    watch_expiry(id, record)
    redriven[#redriven + 1] = id
  end
end
if #redriven > 0 then
  append_ready(redriven, last)
  wake_consumers()
end
return { #redriven, more, scores[looked] or '', ids[looked] or '' }
