-- Read tasks: those of ARGV, or the newest ones. Read-only.
-- @flags no-writes
-- KEYS[1] tasks ZSET id -> when it began, ms
-- ARGV[1] most tasks | ARGV[2..] ids; without any the newest
-- Returns two for each task: id, { field, value ... } of task/<id>; those that are gone are left out
-- Bound: ARGV[1] tasks of some KiB; the caller sends at most 1000.
local PREFIX = string.match(KEYS[1], '^[^}]*}:') .. 'task/'
local ids = {}
for at = 2, #ARGV do
  ids[at - 1] = ARGV[at]
end
if #ids == 0 then ids = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'REV') end
local reply = {}
for _, id in ipairs(ids) do
  local fields = redis.call('HGETALL', PREFIX .. id)
  if #fields > 0 then
    reply[#reply + 1] = id
    reply[#reply + 1] = fields
  end
end
return reply
