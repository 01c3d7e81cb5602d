-- Delete jobs of one topic in one state; holders of reserved ones get the code of cancelled jobs. With the finished ones
-- go the ids that `unique_for` keeps taken, which do not count as jobs.
-- @include clock topic record transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] state | ARGV[3] most jobs to delete
-- Returns { jobs deleted, 1 when there may be more, else 0 }
-- Bound: ARGV[3] jobs and as many ids; the caller sends at most 1000.
local state, limit, now = ARGV[2], tonumber(ARGV[3]), now_ms()
local members = redis.call('ZRANGE', STATE_SETS[state], 0, limit - 1, 'WITHSCORES')
for at = 1, #members, 2 do
  remove_job(members[at], state, tonumber(members[at + 1]), now)
end
if #members > 0 and redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
local removed = #members / 2
if state == 'finished' and removed < limit then
  local freed = redis.call('ZREMRANGEBYRANK', TAKEN, 0, limit - 1)
  return { removed, freed == limit and 1 or 0 }
end
return { removed, removed == limit and 1 or 0 }
