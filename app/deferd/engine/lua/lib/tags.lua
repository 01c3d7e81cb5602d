-- The tag index. Beside `tagged` (lib/topic.lua) it has a key of the shard for each tag in use:
--   tag/<tag> ZSET "topic id" -> 0, the jobs of the shard with this tag, ordered by member
-- A job is in it from its put until it leaves the pool, in every state.

-- Remove jobs from the index; then, with `tags`, add the only one of them with these. To add is allowed only after
-- another write: a store that is out of memory refuses a script whose first write adds data.
-- This is one function, which reads KEYS and ARGV in place of the names of lib/topic.lua, because each function, and
-- each local that it captures, costs every call of the script, also those for jobs without tags.
-- Bound: the ids, at most 1000, with the most tags that a job may have.
local function index_tags(ids, tags)
  local prefix = string.gsub(KEYS[12], 'due$', 'tag/')
  if redis.call('EXISTS', KEYS[15]) == 1 then
    local found = {}
    for index, old in ipairs(redis.call('HMGET', KEYS[15], unpack(ids))) do
      if old then
        found[#found + 1] = ids[index]
        for tag in string.gmatch(old, '%S+') do
          redis.call('ZREM', prefix .. tag, ARGV[1] .. ' ' .. ids[index])
        end
      end
    end
    if #found > 0 then redis.call('HDEL', KEYS[15], unpack(found)) end
  end
  if not tags then return end
  redis.call('HSET', KEYS[15], ids[1], table.concat(tags, ' '))
  for _, tag in ipairs(tags) do
    redis.call('ZADD', prefix .. tag, 0, ARGV[1] .. ' ' .. ids[1])
  end
end
