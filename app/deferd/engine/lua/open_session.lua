-- Begin a session of the console.
-- @flags allow-oom
-- KEYS[1] console/sessions HASH
-- ARGV[1] hash of its cookie | ARGV[2] its value | ARGV[3] life of the key, ms
-- Returns how many sessions there are now
-- Bound: one session.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('HLEN', KEYS[1])
