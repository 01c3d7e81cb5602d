-- The tag index. Beside `tagged` (lib/topic.lua) it has a key of the shard for each tag in use:
--   tag/<tag> ZSET "topic id" -> 0, the jobs of the shard with this tag, ordered by member
-- A job is in it from its put until it leaves the pool, in every state.
local is_tagged  -- whether the topic may have jobs with tags; nil until it is first needed

-- Add a job to the index. Only after another write: a store that is out of memory refuses a script whose first write
-- adds data.
local function tag_job(id, tags)
  is_tagged = true
  redis.call('HSET', TAGGED, id, table.concat(tags, ' '))
  for _, tag in ipairs(tags) do
    redis.call('ZADD', of_shard('tag/' .. tag), 0, TOPIC .. ' ' .. id)
  end
end

-- Remove jobs from the index. Bound: the ids, at most 1000, with the most tags that a job may have.
local function untag(ids)
  if is_tagged == nil then is_tagged = redis.call('EXISTS', TAGGED) == 1 end
  if not is_tagged then return end
  local found = {}
  for index, tags in ipairs(redis.call('HMGET', TAGGED, unpack(ids))) do
    if tags then
      found[#found + 1] = ids[index]
      for tag in string.gmatch(tags, '%S+') do
        redis.call('ZREM', of_shard('tag/' .. tag), TOPIC .. ' ' .. ids[index])
      end
    end
  end
  if #found > 0 then redis.call('HDEL', TAGGED, unpack(found)) end
end

-- Forget what few jobs have: the end of their ttl, and their tags. Bound: as untag.
local function forget_rare_entries(ids)
  if redis.call('EXISTS', EXPIRY, TAGGED) == 0 then return end
  redis.call('ZREM', EXPIRY, unpack(ids))
  untag(ids)
end
