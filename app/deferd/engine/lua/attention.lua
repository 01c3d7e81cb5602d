-- Read what may need a person in topics of a shard. Read-only.
-- @flags no-writes
-- KEYS[1] settings HASH topic -> JSON | KEYS[2] due ZSET; the keys of the topics are named after it
-- ARGV[1] how long the service keeps dead jobs, ms | ARGV[2] jobs that died this long ago count as recent, ms
-- ARGV[3] jobs that are due this much later count as due soon, ms | ARGV[4] only with so many delayed jobs, or in topics
--   with several partitions
-- ARGV[5..] topics
-- Returns { now ms, how many of the topics were read, for each of them nothing: {}, when it has no jobs and asks for no
--   durability, or { settings JSON or '', delayed, ready, reserved, dead, dead ones that died
--   recently unless they have a `dead_retain` of their own, due ms of the first delayed job or -1, delayed jobs that are
--   due by now, due ms of the first one after now or -1, jobs due in the same second as that, jobs due soon, due ms of
--   the oldest ready job or -1, live jobs or -1 when the topic has no `max_jobs`, 0 when it is not pushed, else 1 while
--   the circuit of its target is closed, 2 open, 3 half open, 1 while limits hold back all ready jobs, else 0 }, or { -1 } when another program has damaged its keys }
-- Bound: the topics; the caller sends at most 50. It ends early when the records that it has read reach 1 MiB.
local MOST_BYTES = 1024 * 1024
local HEADS_READ = 20  -- of flows of one topic, to find its oldest ready job
local call, now = redis.call, now_ms()
local prefix = string.sub(KEYS[2], 1, -4)
local default_retention, recent, soon, many = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local names = { unpack(ARGV, 5) }
local all_settings = call('HMGET', KEYS[1], unpack(names))
local reply, bytes = { now, #names }, 0

local function add_delayed(row, key, has_partitions)
  local next_due = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
  row[7] = next_due
  if next_due <= now then
    row[8] = call('ZCOUNT', key, '-inf', now)
    next_due = tonumber(call('ZRANGE', key, row[8], row[8], 'WITHSCORES')[2]) or -1
  end
  row[9] = next_due
  if next_due < 0 then return end
  row[10] = row[2] == 1 and 1 or call('ZCOUNT', key, next_due, next_due - next_due % 1000 + 999)
  if row[2] >= many or has_partitions then row[11] = call('ZCOUNT', key, now + 1, now + soon) end
end

local function settings_of(raw)
  local is_read, settings = pcall(cjson.decode, raw)
  return is_read and type(settings) == 'table' and settings or {}
end

local function circuit_of(key)
  local open_until, probe = unpack(call('HMGET', key, 'until', 'probe'))
  if not open_until then return 1 end
  return (probe or tonumber(open_until) <= now) and 3 or 2
end

local function row_of(name, raw)
  local of_topic = prefix .. name .. ':'
  local pool, shelf = of_topic .. 'pool', of_topic .. 'shelf'
  if call('EXISTS', pool, shelf) == 0 and not string.find(raw, '"du":', 1, true) and not string.find(raw, '"l":', 1, true) then return {} end
  local settings = raw ~= '' and settings_of(raw) or {}
  local delay, ready, dead = of_topic .. 'delay', of_topic .. 'ready', of_topic .. 'dead'
  local reserved = call('ZCARD', of_topic .. 'reserved')
  local row = {
    raw, call('ZCARD', delay), call('ZCARD', ready), reserved, call('ZCARD', dead), 0, -1, 0, -1, 0, 0, -1, -1, 0, 0,
  }
  if row[2] > 0 then add_delayed(row, delay, settings.n) end
  local shelved = tonumber(call('HGET', shelf, 'jobs') or 0)
  row[2] = row[2] + shelved
  if row[5] > 0 then
    row[6] = call('ZCOUNT', dead, now - recent + (settings.po and tonumber(settings.po.q) or default_retention), '+inf')
  end
  if row[3] > 0 then
    local oldest, read = FLOWS.oldest_due(of_topic, HEADS_READ)
    row[12], bytes = oldest, bytes + read
    if call('ZSCORE', of_topic .. 'limited', '') or not FLOWS.has_room(settings.li, of_topic) then row[15] = 1 end
  end
  if tonumber(settings.j) then
    row[13] = call('HLEN', pool) - row[5] - call('ZCARD', of_topic .. 'finished') + shelved
  end
  if settings.pu then row[14] = circuit_of(of_topic .. 'push/state') end
  return row
end

for at, name in ipairs(names) do
  local is_read, row = pcall(row_of, name, all_settings[at] or '')
  reply[2 + at] = is_read and row or { -1 }
  if bytes >= MOST_BYTES and at < #names then
    reply[2] = at
    return reply
  end
end
return reply
