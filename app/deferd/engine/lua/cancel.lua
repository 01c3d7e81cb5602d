-- Cancel a job in any state. After this it is never handed out, and its holder, if any, is told (410).
-- @include clock topic record places
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] id | ARGV[3] 1: refuse when a consumer holds it
-- Returns { 0, the state it was in }; { 1 } not found; { 2 } refused, a consumer holds it
-- Bound: one job, looked for among 2000 of the Ready list.
local id = ARGV[2]
if redis.call('HEXISTS', POOL, id) == 0 then return { 1 } end
local state, score = state_of(id)
if state == 'reserved' and ARGV[3] == '1' then return { 2 } end
remove_job(id, state, score, now_ms())
if state == 'ready' then leave_line(id) end
return { 0, state }
