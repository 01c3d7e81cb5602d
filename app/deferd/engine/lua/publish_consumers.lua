-- Publish the consumers that a process has seen, and keep earlier ones for a minute. Nothing of this outlives its time.
-- @flags allow-oom
-- KEYS[1] reports HASH process -> JSON, see engine/inspection/consumers.py
-- KEYS[2] reported ZSET process -> ms of its last report | KEYS[3] topics ZSET topic -> ms at which a consumer was last
--   seen there
-- ARGV[1] process | ARGV[2] JSON, '' when it is that of the last report | ARGV[3] how long a report is kept, ms
-- ARGV[4] how long topics are kept, ms | ARGV[5] most topics to keep | ARGV[6..] topics with consumers
-- Returns 1, or 0 when the last report is gone, and must be sent again with its JSON
-- Bound: ARGV[6..], at most 1000; at most 100 reports, and 1000 topics, that are removed.
local REPORTS, REPORTED, SEEN = KEYS[1], KEYS[2], KEYS[3]
local MOST_REPORTS, MOST_TOPICS = 100, 1000
local now = now_ms()
delete_if_damaged(REPORTED)
delete_if_damaged(REPORTS, 'HDEL')
delete_if_damaged(SEEN)
local old = redis.call('ZRANGE', REPORTED, '-inf', now - ARGV[3], 'BYSCORE', 'LIMIT', 0, MOST_REPORTS)
if #old > 0 then
  redis.call('ZREM', REPORTED, unpack(old))
  redis.call('HDEL', REPORTS, unpack(old))
end
if ARGV[2] == '' then
  if redis.call('HEXISTS', REPORTS, ARGV[1]) == 0 then return 0 end
else
  redis.call('HSET', REPORTS, ARGV[1], ARGV[2])
end
redis.call('ZADD', REPORTED, now, ARGV[1])
redis.call('PEXPIRE', REPORTS, ARGV[3])
redis.call('PEXPIRE', REPORTED, ARGV[3])
if #ARGV < 6 then return 1 end
local members = {}
for at = 6, #ARGV do
  members[#members + 1] = now
  members[#members + 1] = ARGV[at]
end
redis.call('ZADD', SEEN, unpack(members))
redis.call('PEXPIRE', SEEN, ARGV[4])
local beyond = redis.call('ZCARD', SEEN) - ARGV[5]
if beyond > 0 then redis.call('ZREMRANGEBYRANK', SEEN, 0, math.min(beyond, MOST_TOPICS) - 1) end
return 1
