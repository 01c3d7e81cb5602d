-- What the service remembers for keys of the API beside jobs: calls on many jobs, and tasks. For each key of the API, in
-- each shard: of_key/<key> ZSET name of a key of the store, without the shard -> ms until which it may be there. By this
-- quotas find what they count (key_usage.lua); without a key of the API nothing is noted.

-- Note that `name` is remembered for `kept_ms`, and forget what is not any more.
local function note_of_key(index, name, now, kept_ms)
  local over = redis.call('ZCOUNT', index, '-inf', now)
  if over > 0 then redis.call('ZREMRANGEBYRANK', index, 0, over - 1) end
  redis.call('ZADD', index, now + kept_ms, name)
  if redis.call('PTTL', index) < tonumber(kept_ms) then redis.call('PEXPIRE', index, kept_ms) end
end
