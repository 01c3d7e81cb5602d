-- Put jobs with one id into the partition that had it before the topic had more partitions, if it has it still.
-- KEYS, ARGV: as in put.lua, of jobs with the same id
-- Returns what put.lua returns, maybe only for the first jobs: the caller sends the others again; or { 'not held' } when
--   the id is not held any more, and nothing was done
-- An id that only `unique_for` keeps taken is free for a put of which only a live job is a conflict. It is let go here, so
--   that the job is put where it belongs: no id comes back into a partition that the others may be about to forget. The
--   puts before that one are refused first.
-- Bound: the jobs, at most 1000.
local ONLY_LIVE = 4
local id, last = ARGV[4], #ARGV
if redis.call('HEXISTS', POOL, id) == 0 then
  local taken_until = redis.call('ZSCORE', TAKEN, id)
  if not (taken_until and tonumber(taken_until) > now_ms()) then return { 'not held' } end
  for at = 5, #ARGV, 2 do
    if string.byte(ARGV[at]) % (2 * ONLY_LIVE) >= ONLY_LIVE then
      last = at - 2
      break
    end
  end
  if last == 3 then
    redis.call('ZREM', TAKEN, id)
    return { 'not held' }
  end
end
return scripts.put(KEYS, last == #ARGV and ARGV or { unpack(ARGV, 1, last) })
