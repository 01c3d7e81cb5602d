-- Delete jobs of one topic in one state, or of some ids; holders of reserved ones get the code of cancelled jobs. With
-- all finished ones go the ids that `unique_for` keeps taken, which do not count as jobs.
-- @include clock topic tags record transitions paging
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] state; with ids '' for any | ARGV[3] most jobs to look at
-- ARGV[4] only jobs that are dead for this reason, '' for any | ARGV[5] only jobs with this tag, '' for any
-- ARGV[6] with a reason: score of the last job that the step before looked at, '' to begin | ARGV[7] its id | ARGV[8..]
--   ids
-- Returns { jobs deleted, 1 when there may be more, else 0, score and id of the last job looked at }
-- Bound: ARGV[3] jobs, and as many ids that are taken, or the ids; the caller sends at most 1000.
local wanted_state, limit, now = ARGV[2], tonumber(ARGV[3]), now_ms()
local reason, tag = ARGV[4], ARGV[5]
local removed = 0

local function has_tag(id)
  local tags = redis.call('HGET', TAGGED, id)
  return tags and string.find(' ' .. tags .. ' ', ' ' .. tag .. ' ', 1, true)
end

local function has_reason(id)
  local is_read, extra = pcall(read_extra, redis.call('HGET', POOL, id))
  return is_read and extra.d == reason
end

local function purge(id, state, score)
  if (tag ~= '' and not has_tag(id)) or (reason ~= '' and not (state == 'dead' and has_reason(id))) then return end
  remove_job(id, state, score, now)
  removed = removed + 1
end

local members = {}
if #ARGV > 7 then
  for at = 8, #ARGV do
    if redis.call('HEXISTS', POOL, ARGV[at]) == 1 then
      local state, score = state_of(ARGV[at])
      if wanted_state == '' or state == wanted_state then purge(ARGV[at], state, score) end
    end
  end
else
  local key = STATE_SETS[wanted_state]
  local from = ARGV[6] == '' and 0 or rank_after(key, ARGV[6], ARGV[7])
  members = redis.call('ZRANGE', key, from, from + limit - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    purge(members[at], wanted_state, tonumber(members[at + 1]))
  end
end
if removed > 0 and redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
local more = #members / 2 == limit
if wanted_state == 'finished' and not more and tag == '' and reason == '' and #ARGV <= 7 then
  more = redis.call('ZREMRANGEBYRANK', TAKEN, 0, limit - 1) == limit
end
return { removed, more and 1 or 0, members[#members] or '', members[#members - 1] or '' }
