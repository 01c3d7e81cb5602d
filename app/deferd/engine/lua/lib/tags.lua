-- The tag index. Beside `tagged` (lib/topic.lua) it has a key of the shard for each tag in use:
--   tag/<tag> ZSET "topic id" -> 0, the jobs of the shard with this tag, ordered by member
-- A job is in it from its put until it leaves the pool, in every state.
-- @include topic

-- Remove jobs from the index; then, with `tags`, add the only one of them with these.
-- Bound: the ids, at most 1000, with the most tags that a job may have.
local function index_tags(ids, tags)
  local prefix = of_shard('tag/')
  if redis.call('EXISTS', TAGGED) == 1 then
    local found = {}
    for index, old in ipairs(redis.call('HMGET', TAGGED, unpack(ids))) do
      if old then
        found[#found + 1] = ids[index]
        for tag in string.gmatch(old, '%S+') do
          redis.call('ZREM', prefix .. tag, TOPIC .. ' ' .. ids[index])
        end
      end
    end
    if #found > 0 then redis.call('HDEL', TAGGED, unpack(found)) end
  end
  if not tags then return end
  redis.call('HSET', TAGGED, ids[1], table.concat(tags, ' '))
  for _, tag in ipairs(tags) do
    redis.call('ZADD', prefix .. tag, 0, TOPIC .. ' ' .. ids[1])
  end
end
