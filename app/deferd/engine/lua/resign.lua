-- Release the timer's lock at shutdown, so that another timer takes over at once.
-- @flags allow-oom
-- KEYS[1] lock STRING
-- ARGV[1] this timer's name
-- Returns 1 when it held the lock, else 0
-- Bound: one key.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', 'deferd:due', KEYS[1])
  return 1
end
return 0
