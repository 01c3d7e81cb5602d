-- Sum up the jobs by state of the topics of a shard, and what waits for jobs, one page of topics at a time. Read-only.
-- @flags no-writes
-- KEYS[1] topics ZSET, see lib/topic.lua; the names of the other keys are made from the topics' names
-- ARGV[1] first topic, as for ZRANGE BYLEX | ARGV[2] most topics | ARGV[3..] topics that are left out
-- Returns { the last topic, '' after the last page, then as totals.lua }
-- Bound: ARGV[2] topics; the caller sends at most 250.
local OF_TOPIC = { 'delay', 'ready', 'reserved', 'dead', 'finished' }
local prefix = string.sub(KEYS[1], 1, -7)
local counts, left_out = { 0, 0, 0, 0, 0, 0, 0 }, {}
for at = 3, #ARGV do left_out[ARGV[at]] = true end
local names = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
for _, name in ipairs(names) do
  local of_topic = prefix .. name .. ':'
  local pool, shelf = of_topic .. 'pool', of_topic .. 'shelf'
  if not left_out[name] and redis.call('EXISTS', pool, shelf) > 0 then
    counts[1] = counts[1] + tonumber(redis.call('HGET', shelf, 'jobs') or 0)
    for kind, key in ipairs(OF_TOPIC) do
      counts[kind] = counts[kind] + redis.call('ZCARD', of_topic .. key)
    end
    local follow, items = of_topic .. 'follow', of_topic .. 'items'
    if redis.call('EXISTS', follow, items) > 0 then
      counts[6] = counts[6] + redis.call('HLEN', follow)
      counts[7] = counts[7] + redis.call('HLEN', items)
    end
  end
end
return { #names == tonumber(ARGV[2]) and names[#names] or '', unpack(counts) }
