-- Read how the jobs of a topic are pushed. Read-only.
-- @flags no-writes
-- KEYS: see lib/topic.lua
-- ARGV[1] topic
-- Returns { "secrets\nJSON" as in push_set.lua, or '' when the topic is not pushed, 1 when the topic is known, else 0 }
-- Bound: one topic.
local stored = redis.call('HGET', SETTINGS, TOPIC)
local pushed = stored and string.find(stored, '"pu":', 1, true)
return { pushed and redis.call('HGET', of_shard('push'), TOPIC) or '', stored and 1 or 0 }
