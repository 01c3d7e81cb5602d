-- Check lists of collected items of one topic that a search of the store has found: their size must be recorded. A check
-- of the topic begins with what is recorded, and so does not find lists that are not.
-- @inline findings consistency
-- @flags allow-oom
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/consistency.lua
-- ARGV[3..] ids
-- Returns { how many of the ids were checked, { kind, id, detail, ... } for each finding }
--   Nothing is found in a topic that has a key of the wrong type; a check of the topic reports that.
-- Bound: the ids, at most 1000; of items that belong to a job MOST_READ, as check_collection counts, and those of one job.
local MOST_READ = 1024 * 1024
local here, now, read = attached(), now_ms(), 0
for _, key in ipairs({ POOL, here.FOLLOW, here.ITEMS }) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then return { #ARGV - 2, findings } end
end
for at = 3, #ARGV do
  if read >= MOST_READ then return { at - 3, findings } end
  local id = ARGV[at]
  if redis.call('HEXISTS', here.ITEMS, id) == 0 and redis.call('EXISTS', here.items_key(id)) == 1 then
    read = read + check_collection(id, nil, now)
  end
end
return { #ARGV - 2, findings }
