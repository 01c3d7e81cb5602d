-- Begin a turn of the timer: return the topics that have work, and when the next work is due.
-- @flags allow-oom
-- KEYS[1] due  ZSET topic -> the next ms at which the timer has work there
-- KEYS[2] lock STRING the timer that does the work while others rest; it saves work, correctness does not need it
-- ARGV[1] this timer's name | ARGV[2] how long the lock lasts, ms, at most 3000, the same for all timers
-- ARGV[3] most topics to return
-- ARGV[4] patience, ms: the lock is taken from a holder that has not renewed it for this long, while work is overdue by
--   as much; a holder that does work renews it (promote.lua)
-- Returns { 1, ms until the next work (-1: none, 0: now), topics with work ... }, those overdue longest first,
--   or { 0, ms until the lock ends or may be taken, as far as is known now } when another timer holds it
-- Bound: ARGV[3] topics; the caller sends at most 1000.
local holder = redis.call('GET', KEYS[2])
local left = redis.call('PTTL', KEYS[2])
local now = now_ms()
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
-- A lock with more time left than any timer sets is from before the store's clock stepped back: it is void.
if holder and holder ~= ARGV[1] and left >= 0 and left <= 3000 then
  local wait = left
  if head[2] then
    local overdue, silent = now - tonumber(head[2]), ARGV[2] - left
    wait = math.min(left, ARGV[4] - math.min(overdue, silent))
  end
  if wait > 0 then return { 0, wait } end
end
-- Renewed at half its time, not in every turn: with fsync always, a write here would delay each promotion.
if holder ~= ARGV[1] or left < ARGV[2] / 2 then
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
local wait = head[2] and math.max(tonumber(head[2]) - now, 0) or -1
local reply = { 1, wait }
if wait == 0 then
  for _, topic in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])) do
    reply[#reply + 1] = topic
  end
end
return reply
