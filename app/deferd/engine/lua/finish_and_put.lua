-- Finish a job and put others into topics of the same shard: all of it is done, or nothing.
-- KEYS: those of lib/topic.lua for the topic of the finished job, then the same for each topic of the puts
-- ARGV[1] topic | ARGV[2] id | ARGV[3] nonce u48 | attempt u32 | result, as in finish.lua
-- ARGV[4..] for each topic of the puts: topic | terms as in check_puts.lua | how many jobs | two for each, as in put.lua
-- Returns { 'done', code as in finish.lua, {}, {} } when the job was not finished now: 0 when this delivery finished it
--   before, and nothing is put again; or
--   { 'done', 0, what put.lua returns for each put, topic by topic, for how long the job was held, as in finish.lua } when
--   all was done; or, when nothing was done because of the first topic that check_puts.lua did not pass,
--   { 'refused', number of the topic, from 1, and what follows in its reply }; or
--   { 'terms', for this and each later topic with others { its number, and what follows in its reply } }
-- Bound: one job, and the puts, at most 10.
local id, argument = ARGV[2], ARGV[3]
local nonce, attempt = struct.unpack('<I6I4', argument)
local code, raw = find_delivery(id, nonce, attempt, now_ms())
-- Finishes nothing, as it has no live delivery; it says whether an earlier call did.
if code ~= LIVE then return { 'done', scripts.finish(KEYS, { TOPIC, id, argument })[1], {}, {} } end

local groups, at = {}, 4
while at <= #ARGV do
  local group = { topic = ARGV[at], terms = ARGV[at + 1], jobs = {}, keys = {} }
  local last = at + 2 + 2 * tonumber(ARGV[at + 2])
  for index = at + 3, last do
    group.jobs[#group.jobs + 1] = ARGV[index]
  end
  groups[#groups + 1] = group
  at = last + 1
end
local keys_of_topic = #KEYS / (#groups + 1)
local reply = { 'terms' }
for number, group in ipairs(groups) do
  for index = 1, keys_of_topic do
    group.keys[index] = KEYS[number * keys_of_topic + index]
  end
  local finishing = group.topic == TOPIC and id or ''
  local checked = scripts.check_puts(group.keys, { group.topic, group.terms, finishing, unpack(group.jobs) })
  if checked[1] == 'terms' then reply[#reply + 1] = { number, unpack(checked, 2) } end
  if checked[1] == 'refused' and #reply == 1 then return { 'refused', number, unpack(checked, 2) } end
end
if #reply > 1 then return reply end

local finished = scripts.finish(KEYS, { TOPIC, id, argument })
local results = {}
for _, group in ipairs(groups) do
  for _, result in ipairs(scripts.put(group.keys, { group.topic, '0', '', unpack(group.jobs) })[3]) do
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
return { 'done', 0, results, { unpack(finished, 2) } }
