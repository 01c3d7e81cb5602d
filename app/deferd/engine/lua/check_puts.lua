-- Find the first of some puts into one topic that would be refused. Read-only.
-- @include topic transitions
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] the durability that the puts reach if some name none, a level of store/durability_levels.py;
--   -1: all name theirs
-- ARGV[3] id of a reserved job of the topic that is finished before the puts, '' for none
-- ARGV[4] 1 when that job is then kept as finished, 0 when it is removed
-- ARGV[5..] two for each job, as in put.lua
-- Returns { 0 } when all would be stored, kept or replaced;
--   { number of the job in ARGV, from 1 | code below 0 as in put.lua | the topic's max_jobs or 0 }; or
--   { -1 | the topic's default durability } when that is above ARGV[2]
-- Bound: the jobs in ARGV, at most 10.
local REJECT, KEEP = 0, 1
local EXISTS, HELD, FULL = -1, -2, -3
local finishing, is_kept = ARGV[3], ARGV[4] == '1'
local settings = redis.call('HGET', SETTINGS, TOPIC)
settings = settings and settings ~= '' and cjson.decode(settings) or {}
local reached, default = tonumber(ARGV[2]), settings.l or 0
if reached >= 0 and default > reached then return { -1, default } end

local max_jobs = settings.j or 0
local live = redis.call('HLEN', POOL) - redis.call('ZCARD', DEAD) - redis.call('ZCARD', FINISHED)
if finishing ~= '' then live = live - 1 end

local states = {}  -- of ids, as the puts before and the finish leave them

local function current_state(id)
  if id == finishing and not states[id] then return is_kept and 'finished' or nil end
  return states[id] or redis.call('HEXISTS', POOL, id) == 1 and state_of(id) or nil
end

-- The code of a put that would be refused, nil for others.
local function refusal(id, on_conflict, bound)
  local state = current_state(id)
  if state and on_conflict == REJECT then return EXISTS end
  if state and on_conflict == KEEP then return nil end
  if state == 'reserved' then return HELD end
  states[id] = 'ready'
  if state == 'delayed' or state == 'ready' then return nil end
  local is_full = max_jobs > 0 and live >= max_jobs or bound > 0 and live >= bound
  live = live + 1
  return is_full and FULL or nil
end

for at = 5, #ARGV, 2 do
  local on_conflict, _, _, _, bound = struct.unpack('<BBI8I8I4', ARGV[at + 1])
  local code = refusal(ARGV[at], on_conflict, bound)
  if code then return { (at - 3) / 2, code, max_jobs } end
end
return { 0 }
