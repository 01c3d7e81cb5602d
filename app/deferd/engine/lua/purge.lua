-- Delete jobs of one topic in one state; holders of reserved ones are told as if they had been cancelled.
-- @include clock topic record places
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] state | ARGV[3] most jobs to delete
-- Returns { jobs deleted, 1 when there may be more, else 0 }
-- Bound: ARGV[3] jobs or left-over ids; the caller sends at most 1000.
local state, limit, now = ARGV[2], tonumber(ARGV[3]), now_ms()
local removed, looked_at = 0, 0
if state == 'ready' then
  for _, id in ipairs(redis.call('LPOP', READY, limit) or {}) do
    looked_at = looked_at + 1
    if is_ready(id) then
      remove_job(id, state, nil, now)
      removed = removed + 1
    end
  end
else
  local members = redis.call('ZRANGE', PLACES[state], 0, limit - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    looked_at = looked_at + 1
    remove_job(members[at], state, tonumber(members[at + 1]), now)
    removed = removed + 1
  end
end
return { removed, looked_at == limit and 1 or 0 }
