-- Give a partition of a topic the settings of the topic, unless it has them already, or later ones.
-- @flags allow-oom
-- KEYS: see lib/topic.lua, of the partition
-- ARGV[1] partition | ARGV[2] the settings of the topic, JSON
-- Returns { }; or { revision, number of partitions } of its settings when they are later, or for more partitions, and
--   nothing was done: a failover has taken back a change of the topic
-- Bound: one partition.
local old, new = ensure_topic(), cjson.decode(ARGV[2])
local revision, count = old.rv or 0, old.n or 1
local given = new.rv or 0  -- another program may have replaced the settings
if revision > given or count > (new.n or 1) then return { revision, count } end
if revision == given then return {} end
redis.call('HSET', SETTINGS, TOPIC, ARGV[2])
keep_events(old.ev, new.ev)
if old.p == 1 and new.p ~= 1 then wake_consumers() end
return {}
