-- Renew a session of the console, unless it has ended since it was read.
-- @flags allow-oom
-- KEYS[1] console/sessions HASH
-- ARGV[1] hash of its cookie | ARGV[2] its value as it was read | ARGV[3] the new one | ARGV[4] life of the key, ms
-- Returns 1 when there is such a session, else 0; one that another call has renewed meanwhile stays as it is
-- Bound: one session.
local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value then return 0 end
if value == ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 1
