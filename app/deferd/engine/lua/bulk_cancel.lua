-- Cancel the selected jobs of one topic, in any state; later calls of holders get the code of cancelled jobs.
-- @include clock topic tags record transitions paging selection
-- KEYS, ARGV, result, bound: see lib/selection.lua; further in ARGV[2]:
--     refuse_reserved  true: leave jobs that a consumer holds
local now = now_ms()

return run_step(function(jobs)
  local of_state, removed, held, done = {}, {}, {}, 0
  for _, job in ipairs(jobs) do
    if job.state ~= 'reserved' then
      of_state[job.state] = of_state[job.state] or {}
      table.insert(of_state[job.state], job.id)
      removed[#removed + 1] = job.id
    elseif OPTIONS.refuse_reserved then
      held[#held + 1] = job.id
    else
      remove_job(job.id, job.state, job.score, now)
      done = done + 1
    end
  end
  for state, ids in pairs(of_state) do
    redis.call('ZREM', STATE_SETS[state], unpack(ids))
  end
  if #removed > 0 then
    redis.call('ZREM', EXPIRY, unpack(removed))
    redis.call('HDEL', POOL, unpack(removed))
    untag(removed)
    tally('cancelled', #removed - #(of_state.finished or {}))
  end
  if redis.call('HLEN', POOL) == 0 then schedule(now + FORGET_AFTER_MS) end
  return done + #removed, held
end)
