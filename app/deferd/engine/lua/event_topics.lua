-- Read which topics of a shard have events. Read-only, but that a key of the wrong type, which another program has made, is
-- replaced by the topics whose settings have events.
-- @flags allow-oom
-- KEYS[1] events/topics ZSET topic -> 0 | KEYS[2] settings HASH topic -> JSON
-- ARGV[1] the topic after which the page begins, '' to begin | ARGV[2] most topics
-- Returns the topics, in order
-- Bound: ARGV[2] topics; the caller sends at most 1000. Once after the damage: all topics of the shard.
local LISTED = KEYS[1]
local after = ARGV[1] == '' and '-' or '(' .. ARGV[1]
local page = redis.pcall('ZRANGEBYLEX', LISTED, after, '+', 'LIMIT', 0, ARGV[2])
if not page.err then return page end
relist_event_topics(LISTED, KEYS[2])
return redis.call('ZRANGEBYLEX', LISTED, after, '+', 'LIMIT', 0, ARGV[2])
