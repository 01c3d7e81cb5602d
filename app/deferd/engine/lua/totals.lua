-- Sum up the jobs of many topics by state, and what waits for jobs. Read-only.
-- @flags no-writes
-- KEYS[8n+1] delay | KEYS[8n+2] ready | KEYS[8n+3] reserved | KEYS[8n+4] dead | KEYS[8n+5] finished: five ZSETs for
--   each topic, all of one shard; KEYS[8n+6] follow | KEYS[8n+7] items | KEYS[8n+8] shelf: three HASHes
-- Returns { delayed, ready, reserved, dead, finished, follow-ups, jobs and follow-ups that collect items }
-- Bound: the topics in KEYS; the caller sends at most 500.
local KINDS, STATES, SHELF = 8, 5, 8
local counts, rare = { 0, 0, 0, 0, 0, 0, 0 }, {}
for at, key in ipairs(KEYS) do
  local kind = (at - 1) % KINDS + 1
  if kind <= STATES then
    counts[kind] = counts[kind] + redis.call('ZCARD', key)
  else
    rare[#rare + 1] = key
  end
end
if redis.call('EXISTS', unpack(rare)) == 0 then return counts end
for at, key in ipairs(rare) do
  local kind = STATES + (at - 1) % (KINDS - STATES) + 1
  if kind == SHELF then
    counts[1] = counts[1] + tonumber(redis.call('HGET', key, 'jobs') or 0)
  else
    counts[kind] = counts[kind] + redis.call('HLEN', key)
  end
end
return counts
