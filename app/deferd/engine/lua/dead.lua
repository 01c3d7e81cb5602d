-- Read dead jobs of topics, those kept longest first: without a `dead_retain` of their own, those that died last. Of one
-- topic also the pages after the first. Read-only.
-- @flags no-writes
-- KEYS[2n+1] dead ZSET id -> retention end ms | KEYS[2n+2] pool HASH id -> record: two for each topic, all of one shard
-- ARGV[1] score of the last page's last job, '' to begin | ARGV[2] its id | ARGV[3..] most jobs of each topic
-- Returns for each topic { 1 when there is more, else 0, jobs looked at, score and id of the last of them, then two for
--   each job: id | record up to the body }; jobs without a record are left out. Nothing of a topic whose keys are of
--   another type, because another program has damaged them: { 0, -1, '', '' }
-- Bound: the jobs in ARGV[3..]; the caller sends at most 250 together. A page ends early when the records of the call,
-- with their bodies, reach 1 MiB.
local MOST_BYTES = 1024 * 1024
local bytes = 0

-- How many of the topic's jobs come before the place where the page ends that was read before.
local function rest_of(dead)
  if ARGV[1] == '' then return redis.call('ZCARD', dead) end
  local rest = rank_after(dead, ARGV[1], ARGV[2])
  local score = redis.call('ZSCORE', dead, ARGV[2])
  return score and tonumber(score) == tonumber(ARGV[1]) and rest - 1 or rest
end

local function page_of(dead, pool, most)
  local page, rest = { 0, 0, '', '' }, rest_of(dead)
  local members = rest > 0 and redis.call('ZRANGE', dead, math.max(rest - most, 0), rest - 1, 'WITHSCORES') or {}
  for at = #members - 1, 1, -2 do
    if bytes >= MOST_BYTES then break end
    local id = members[at]
    page[2], page[3], page[4] = page[2] + 1, members[at + 1], id
    local raw = redis.call('HGET', pool, id)
    if raw and #raw >= HEADER_BYTES then
      bytes = bytes + #raw
      local length = struct.unpack('<I4', raw, 23)
      page[#page + 1] = id
      page[#page + 1] = string.sub(raw, 1, HEADER_BYTES + length)
    end
  end
  if rest > page[2] then page[1] = 1 end
  return page
end

local reply = {}
for at = 1, #KEYS, 2 do
  local topic = (at + 1) / 2
  local is_read, page = pcall(page_of, KEYS[at], KEYS[at + 1], tonumber(ARGV[2 + topic]))
  reply[topic] = is_read and page or { 0, -1, '', '' }
end
return reply
