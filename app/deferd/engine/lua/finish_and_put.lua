-- Finish a job and put others into topics of the same shard: all of it is done, or nothing.
-- @include clock topic record transitions delivery
-- KEYS: those of lib/topic.lua for the topic of the finished job, then the same for each topic of the puts
-- ARGV[1] topic | ARGV[2] id | ARGV[3] nonce u48 | attempt u32 | result, as in finish.lua
-- ARGV[4..] for each topic of the puts: topic | ARGV[2] of check_puts.lua | how many jobs | two for each, as in put.lua
-- Returns { code as in finish.lua } when the job was not finished now: 0 when this delivery finished it before, and
--   nothing is put again; or
--   { 0, what put.lua returns for each put, topic by topic } when all was done; or, when nothing was done because of
--   the puts, { -1, the first topic that refuses, from 1, what check_puts.lua returned for it }
-- Bound: one job, and the puts, at most 10.
local id, argument = ARGV[2], ARGV[3]
local nonce, attempt = struct.unpack('<I6I4', argument)
local code, raw = find_delivery(id, nonce, attempt, now_ms())
-- Finishes nothing, as it has no live delivery; it says whether an earlier call did.
if code ~= LIVE then return scripts.finish(KEYS, { TOPIC, id, argument }) end

local groups, at = {}, 4
while at <= #ARGV do
  local group = { topic = ARGV[at], reached = ARGV[at + 1], jobs = {}, keys = {} }
  local last = at + 2 + 2 * tonumber(ARGV[at + 2])
  for index = at + 3, last do
    group.jobs[#group.jobs + 1] = ARGV[index]
  end
  groups[#groups + 1] = group
  at = last + 1
end
local keys_of_topic = #KEYS / (#groups + 1)
for number, group in ipairs(groups) do
  for index = 1, keys_of_topic do
    group.keys[index] = KEYS[number * keys_of_topic + index]
  end
  local finishing = group.topic == TOPIC and id or ''
  local refused = scripts.check_puts(group.keys, { group.topic, group.reached, finishing, unpack(group.jobs) })
  if refused[1] ~= 0 then return { -1, number, refused } end
end

scripts.finish(KEYS, { TOPIC, id, argument })
local results = {}
for _, group in ipairs(groups) do
  for _, result in ipairs(scripts.put(group.keys, { group.topic, '0', '-1 *', unpack(group.jobs) })[3]) do
    results[#results + 1] = result
  end
  if group.topic == TOPIC then
    -- A put may have taken the place of the job. A repeated finish learns from this that it was done.
    local live_nonce, attempts = read_nonce_and_attempts(raw)
    local put_raw = redis.call('HGET', POOL, id)
    if put_raw and read_nonce_and_attempts(put_raw) ~= live_nonce then
      local record = read_record(put_raw)
      record.extra.p = string.format('%.0f %d', live_nonce, attempts + 1)
      redis.call('HSET', POOL, id, write_record(record))
    end
  end
end
return { 0, results }
