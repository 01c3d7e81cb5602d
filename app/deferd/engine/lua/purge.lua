-- Delete jobs of one topic in one state; holders of reserved ones get the code of cancelled jobs.
-- @include clock topic tags record transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] state | ARGV[3] most jobs to delete
-- Returns { jobs deleted, 1 when there may be more, else 0 }
-- Bound: ARGV[3] jobs; the caller sends at most 1000.
local state, limit, now = ARGV[2], tonumber(ARGV[3]), now_ms()
local members = redis.call('ZRANGE', STATE_SETS[state], 0, limit - 1, 'WITHSCORES')
for at = 1, #members, 2 do
  remove_job(members[at], state, tonumber(members[at + 1]), now)
end
if #members > 0 and redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
local removed = #members / 2
return { removed, removed == limit and 1 or 0 }
