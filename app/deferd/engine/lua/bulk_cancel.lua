-- Cancel the selected jobs of one topic, in any state; later calls of holders get the code of cancelled jobs.
-- @inline selection
-- @flags allow-oom
-- KEYS, ARGV: see lib/selection.lua; further in ARGV[2]:
--     refuse_reserved  true: leave jobs that a consumer holds
--     undo  the name under which the cancelled jobs are kept for a while, see lib/undo.lua; only with `request`
-- Returns: see lib/selection.lua
-- Bound: see lib/selection.lua
FLOWS.check_types()
return run_step(function(jobs)
  if OPTIONS.undo then UNDO.keep(OPTIONS.undo, jobs, now, 'bulk/' .. OPTIONS.request) end
  local of_state, removed, held, done, has_flows = {}, {}, {}, 0, FLOWS.exist()
  for index, id in ipairs(jobs.ids) do
    local state = jobs.states[index]
    if state ~= 'reserved' then
      local is_live = state ~= 'dead' and state ~= 'finished'
      if is_live and has_flows then FLOWS.left_raw(id, jobs.raws[index]) end
      if is_live and ENDS.may_matter() then ENDS.cancelled(id, jobs.raws[index]) end
      of_state[state] = of_state[state] or {}
      table.insert(of_state[state], id)
      removed[#removed + 1] = id
    elseif OPTIONS.refuse_reserved then
      held[#held + 1] = jobs.members[index]
    else
      remove_job(id, state, tonumber(redis.call('ZSCORE', RESERVED, id)), now, false, '')
      done = done + 1
    end
  end
  for state, ids in pairs(of_state) do
    redis.call('ZREM', set_of(state), unpack(ids))
  end
  if #removed > 0 then
    redis.call('HDEL', POOL, unpack(removed))
    if redis.call('EXISTS', EXPIRY, TAGGED) > 0 then  -- most jobs have neither a ttl nor tags
      redis.call('ZREM', EXPIRY, unpack(removed))
      index_tags(removed)
    end
    if of_state.finished then redis.call('ZREM', TAKEN, unpack(of_state.finished)) end
    attached().drop(removed)
    tally('cancelled', #removed - #(of_state.finished or {}))
    local most_events = events_to_keep()
    if most_events then
      local noted = {}
      for state, ids in pairs(of_state) do
        for _, id in ipairs(ids) do noted[#noted + 1] = string.format('X%.0f %s %s ', now, id, state) end
      end
      note_events(most_events, noted)
    end
  end
  if redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
  return done + #removed, held
end)
