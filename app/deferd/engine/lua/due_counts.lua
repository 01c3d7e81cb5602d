-- Count the delayed jobs of several topics by when they are due. Read-only.
-- @flags no-writes
-- KEYS[1..] ZSET id -> due ms, the delayed jobs of the topics, all of one shard
-- ARGV[1] ms at which the first bucket begins, '' for now | ARGV[2] ms at which the last one ends, '' for ARGV[3] after
--   the first begins | ARGV[3] ms | ARGV[4] buckets
-- Returns { now ms, begin ms, end ms, for each key nothing: {}, or { jobs on the shelf, which the others do not count,
--   delayed jobs, those due before the first bucket, jobs in each bucket ... }; without the buckets when they are empty }. The last bucket but for its end: a job that is
--   due then comes after it. With an end that is not after the begin the keys are not read.
-- Bound: ARGV[4] + 3 searches in each sorted set; the caller sends few enough keys that this takes some milliseconds.
local now = now_ms()
local begin = ARGV[1] == '' and now or tonumber(ARGV[1])
local ending = ARGV[2] == '' and begin + tonumber(ARGV[3]) or tonumber(ARGV[2])
local buckets = tonumber(ARGV[4])
local reply = { now, begin, ending }
if ending <= begin then return reply end
-- A topic with so few jobs in all buckets together is read, which takes less than to search each end of a bucket.
local FEW_JOBS = 50
local call, span = redis.call, ending - begin
local ends = {}  -- of each bucket; ends[0] is the begin of the first
for at = 0, buckets do ends[at] = begin + math.floor(at * span / buckets) end
local limits = {}
for at = 0, buckets do limits[at] = string.format('(%.0f', ends[at]) end

for index, key in ipairs(KEYS) do
  local all = redis.pcall('ZCARD', key)
  local counts = {}
  local shelved = call('EXISTS', string.sub(key, 1, -6) .. 'shelf') == 1
    and tonumber(call('HGET', string.sub(key, 1, -6) .. 'shelf', 'jobs')) or 0
  if type(all) == 'number' and all + shelved > 0 then  -- else another program has damaged the key
    local before = call('ZCOUNT', key, '-inf', limits[0])
    local last = before < all and call('ZCOUNT', key, '-inf', limits[buckets]) or before
    counts[1], counts[2], counts[3] = shelved, all, before
    if last > before then
      for at = 1, buckets do counts[3 + at] = 0 end
      if last - before <= FEW_JOBS then
        local members, bucket = call('ZRANGE', key, before, last - 1, 'WITHSCORES'), 1
        for at = 2, #members, 2 do
          local due = tonumber(members[at])
          while due >= ends[bucket] do bucket = bucket + 1 end
          counts[3 + bucket] = counts[3 + bucket] + 1
        end
      else
        local counted = before
        for at = 1, buckets do
          local until_now = at < buckets and call('ZCOUNT', key, '-inf', limits[at]) or last
          counts[3 + at] = until_now - counted
          counted = until_now
          if counted == last then break end
        end
      end
    end
  end
  reply[3 + index] = counts
end
return reply
