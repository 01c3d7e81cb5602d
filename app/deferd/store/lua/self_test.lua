-- The self-test of a store: runs every command that deferd's scripts use, on scratch keys, and checks the behaviour that
-- the scripts rely on. A unit test fails when a script uses a command that is not tried here.
-- KEYS[1] to KEYS[4] scratch keys of one slot: ZSET, HASH, STRING, and another name for the last
-- ARGV[1] a channel to publish on, which nobody listens to
-- Returns { { command, error ... }, { difference from Valkey and Redis ... } }
-- Bound: about sixty commands on a handful of members. All keys are gone at the end.
local ZSET, HASH, STRING, RENAMED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local MS, MS_TEXT = 1760000000123, '1760000000123'
local failed, wrong = {}, {}

-- The reply, or nil when the command failed; a null reply is false.
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = command
    failed[#failed + 1] = reply.err
    return nil
  end
  return reply
end

local function shown(value)
  if type(value) ~= 'table' then return tostring(value) end
  if value.ok then return value.ok end
  local parts = {}
  for at = 1, #value do parts[at] = shown(value[at]) end
  return '{' .. table.concat(parts, ' ') .. '}'
end

local function expect(what, actual, wanted)
  if actual ~= nil and shown(actual) ~= wanted then
    wrong[#wrong + 1] = string.format('%s returned %s instead of %s', what, shown(actual), wanted)
  end
end

local function check(what, holds)
  if not holds then wrong[#wrong + 1] = what end
end

-- First a write that an out-of-memory store allows, as in all scripts.
try('DEL', ZSET, HASH, STRING, RENAMED)

local time = try('TIME')
check('TIME did not return seconds and microseconds', time == nil or (#time == 2 and time[1] * 1000 > 0 and time[2] + 0 >= 0))
try('PUBLISH', ARGV[1], '')

expect('GET of a missing key', try('GET', STRING), 'false')
expect('SET', try('SET', STRING, '41', 'PX', 60000), 'OK')
expect('INCRBY', try('INCRBY', STRING, 1), '42')
try('PEXPIRE', STRING, 50000)
local left = try('PTTL', STRING)
check('PTTL did not return the remaining time', left == nil or left > 0 and left <= 60000)
expect('EXISTS', try('EXISTS', STRING, ZSET), '1')
try('RENAME', STRING, RENAMED)
expect('UNLINK', try('UNLINK', RENAMED), '1')

expect('RPUSH', try('RPUSH', STRING, 'a', 'b', 'c'), '3')
expect('LLEN', try('LLEN', STRING), '3')
expect('LRANGE', try('LRANGE', STRING, 1, -1), '{b c}')
expect('LSET', try('LSET', STRING, -1, 'd'), 'OK')
expect('LPOP', try('LPOP', STRING), 'a')
expect('LRANGE of the last element', try('LRANGE', STRING, -1, -1), '{d}')
expect('cmsgpack', cmsgpack.unpack(cmsgpack.pack({ 0, 200, 70000, -1 })), '{0 200 70000 -1}')
expect('LTRIM', try('LTRIM', STRING, -1, -1), 'OK')
expect('LLEN of a trimmed list', try('LLEN', STRING), '1')
try('DEL', STRING)

expect('HSTRLEN of a missing field', try('HSTRLEN', HASH, 'a'), '0')
expect('HGET of a missing key', try('HGET', HASH, 'a'), 'false')
expect('HSETNX', try('HSETNX', HASH, 'a', '1'), '1')
expect('HSETNX of an existing field', try('HSETNX', HASH, 'a', '2'), '0')
expect('HSET', try('HSET', HASH, 'b', '3', 'c', '4'), '2')
expect('HMGET', try('HMGET', HASH, 'a', 'no', 'c'), '{1 false 4}')
expect('HEXISTS', try('HEXISTS', HASH, 'no'), '0')
expect('HINCRBY', try('HINCRBY', HASH, 'n', 5), '5')
expect('HDEL', try('HDEL', HASH, 'n', 'no'), '1')
expect('HLEN', try('HLEN', HASH), '3')
expect('HGETALL of a missing key', try('HGETALL', STRING), '{}')
local all_fields = try('HGETALL', HASH)
check('HGETALL did not return pairs', all_fields == nil or #all_fields == 6)
expect('TYPE', try('TYPE', HASH), 'hash')
local fields = try('HSCAN', HASH, '0', 'COUNT', 10)
check('HSCAN did not return a cursor and pairs', fields == nil or (fields[1] == '0' and #fields[2] == 6))

expect('ZSCORE of a missing key', try('ZSCORE', ZSET, 'a'), 'false')
expect('ZADD', try('ZADD', ZSET, MS, 'a', MS + 5, 'b'), '2')
expect('ZADD LT of a new member', try('ZADD', ZSET, 'LT', MS + 9, 'c'), '1')
try('ZADD', ZSET, 'LT', MS + 10, 'c')
expect('ZSCORE after ZADD LT with a higher score', try('ZSCORE', ZSET, 'c'), '1760000000132')
try('ZADD', ZSET, 'LT', MS, 'c')
expect('ZSCORE after ZADD LT with a lower score', try('ZSCORE', ZSET, 'c'), MS_TEXT)
expect('ZMSCORE', try('ZMSCORE', ZSET, 'a', 'no', 'b'), '{' .. MS_TEXT .. ' false 1760000000128}')
expect('ZMSCORE of a missing key', try('ZMSCORE', STRING, 'a'), '{false}')
expect('ZCARD', try('ZCARD', ZSET), '3')
expect('ZCOUNT', try('ZCOUNT', ZSET, '-inf', MS), '2')
expect('ZRANGE', try('ZRANGE', ZSET, 0, 0, 'WITHSCORES'), '{a ' .. MS_TEXT .. '}')
expect('ZRANGE BYSCORE', try('ZRANGE', ZSET, '-inf', MS, 'BYSCORE', 'LIMIT', 0, 5), '{a c}')
expect('ZRANGEBYSCORE', try('ZRANGEBYSCORE', ZSET, '-inf', MS, 'LIMIT', 0, 1), '{a}')
local members = try('ZSCAN', ZSET, '0', 'COUNT', 10)
check('ZSCAN did not return a cursor and pairs', members == nil or (members[1] == '0' and #members[2] == 6))
expect('ZREM', try('ZREM', ZSET, 'c', 'no'), '1')
expect('ZREMRANGEBYRANK', try('ZREMRANGEBYRANK', ZSET, 0, 0), '1')
expect('ZRANGE of the last member', try('ZRANGE', ZSET, 0, -1), '{b}')
expect('ZPOPMIN of a missing key', try('ZPOPMIN', STRING, 2), '{}')
try('ZADD', ZSET, -1, 'front')
expect('ZPOPMIN', try('ZPOPMIN', ZSET, 1), '{front -1}')
try('ZREM', ZSET, 'b')
try('ZADD', ZSET, 0, 'x', 0, 'y')
expect('ZRANGEBYLEX', try('ZRANGEBYLEX', ZSET, '(x', '+', 'LIMIT', 0, 1), '{y}')
local keys = try('SCAN', '0', 'COUNT', 1)
check('SCAN did not return a cursor and keys', keys == nil or (#keys == 2 and type(keys[2]) == 'table'))

-- Errors, tables and bytes in Lua.
local wrong_type = redis.pcall('HLEN', ZSET)
check('a command on a key of the wrong type does not fail', type(wrong_type) == 'table' and wrong_type.err)
check('redis.call does not raise errors', not pcall(redis.call, 'HLEN', ZSET))
local many = {}
for at = 1, 3000 do many[at] = 'm' .. at end
expect('ZREM of many members', try('ZREM', ZSET, unpack(many)), '0')
local decoded = cjson.decode(cjson.encode({ t = 60000, e = 'é', f = MS }))
check('cjson does not keep values', decoded.t == 60000 and decoded.e == 'é' and decoded.f == MS)
local packed = struct.pack('<BBI8I6I4', 1, 2, MS, 2 ^ 47 - 1, 7)
local one, two, ms, nonce, length, at = struct.unpack('<BBI8I6I4', packed .. 'x')
check(
  'struct does not keep values',
  #packed == 20 and one == 1 and two == 2 and ms == MS and nonce == 2 ^ 47 - 1 and length == 7 and at == 21
)
expect('string.format of a number', string.format('%.0f', MS), MS_TEXT)

try('DEL', ZSET, HASH, STRING, RENAMED)
return { failed, wrong }
