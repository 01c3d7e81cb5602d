-- Delete jobs of one topic in one state, or of some ids; holders of reserved ones get the code of cancelled jobs. With
-- all finished ones go the ids that `unique_for` keeps taken, which do not count as jobs.
-- @inline sweep
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] a JSON object: what all sweeps have, see lib/sweep.lua, and
--     state  only jobs in this state; left out only with ids | most  most jobs to look at, without ids
--     frees_taken  the ids go also with a cutoff
-- ARGV[3..] ids
-- Returns: see lib/sweep.lua
-- Bound: `most` jobs, and as many ids that are taken, or the ids; the caller sends at most 1000. It ends early when the
-- records that it has read reach 1 MiB: with a reason, group or cutoff those of all jobs, else of reserved ones, and in a
-- topic with groups or priorities of all live ones.
local removed, looked, first, states_of_first = 0, 0, {}, {}
local has_flows = FLOWS.exist()

local function matches(id, state)
  if OPTIONS.tag and not has_tag(id) then return false end
  if not OPTIONS.reason and not OPTIONS.group and not OPTIONS.cutoff then return true end
  local raw = read_raw(id)
  if not is_of_group(raw) then return false end
  local is_read, extra = pcall(read_extra, raw)
  if not is_read or #raw < HEADER_BYTES or not was_there(struct.unpack('<I6', raw), state == 'dead' and extra or {}) then
    return false
  end
  return not OPTIONS.reason or state == 'dead' and has_reason(extra)
end

local function purge(id, state, score)
  if not matches(id, state) then return end
  removed = removed + 1
  if not OPTIONS.samples then
    local is_live = state ~= 'dead' and state ~= 'finished'
    if state == 'reserved' or is_live and (has_flows or ENDS.may_matter()) then
      bytes = bytes + redis.call('HSTRLEN', POOL, id)  -- it is read
    end
    if is_live and ENDS.may_matter() then ENDS.cancelled(id, redis.call('HGET', POOL, id)) end
    remove_job(id, state, score, now)
  elseif #first < OPTIONS.samples then
    first[#first + 1], states_of_first[#first + 1] = id, state
  end
end

local has_ids = #ARGV > 2
local key = set_of(OPTIONS.state)
local ids, scores, more = ids_or_page(key, OPTIONS.most)
for index, id in ipairs(ids) do
  if bytes >= MOST_BYTES then
    more = 1
    break
  end
  looked = index
  if not has_ids then
    purge(id, OPTIONS.state, tonumber(scores[index]))
  elseif redis.call('HEXISTS', POOL, id) == 1 then
    local state, score = state_of(id)
    if not OPTIONS.state or state == OPTIONS.state then purge(id, state, score) end
  end
end
if removed > 0 and not OPTIONS.samples then
  note_event('Z', '-', removed, OPTIONS.state or 'any', 'purge')
  if redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
end
local is_for_all = not OPTIONS.tag and not OPTIONS.group and not OPTIONS.reason and not OPTIONS.samples
  and (not OPTIONS.cutoff or OPTIONS.frees_taken)
if OPTIONS.state == 'finished' and more == 0 and is_for_all and not has_ids then
  more = redis.call('ZREMRANGEBYRANK', TAKEN, 0, OPTIONS.most - 1) == OPTIONS.most and 1 or 0
end
return sweep_reply(removed, more, ids, scores, looked, first, states_of_first)
