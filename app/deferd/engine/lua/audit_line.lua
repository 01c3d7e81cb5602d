-- Check jobs that are ready and were not met in the Ready list. A job that has left the list and come back has another
-- version; one with the version of before has been ready all the time, so a walk through the whole list meets it.
-- @include clock topic record places soundness
-- KEYS, ARGV[1] topic, ARGV[2] repair: see lib/soundness.lua
-- ARGV[3..] two for each job: id | '', or its version before a second walk through the list that did not meet it either
-- Returns { { id, version of each that is still ready and not near either end of the list ... },
--   { kind, id, detail of each damage ... } }; a version is made of instants, nonce and attempts of the record.
-- Bound: the jobs given, at most 500, and 2000 ids of the list.
local now = now_ms()
local near = {}
for _, id in ipairs(redis.call('LRANGE', READY, 0, NEAR - 1)) do near[id] = true end
for _, id in ipairs(redis.call('LRANGE', READY, -NEAR, -1)) do near[id] = true end

local function is_in_line() return false end

local suspects = {}
for at = 3, #ARGV, 2 do
  local id, version_before = ARGV[at], ARGV[at + 1]
  if not near[id] and is_ready(id) then
    local raw = redis.call('HGET', POOL, id)
    local version = string.sub(raw, 1, 22)
    if version_before == '' then
      suspects[#suspects + 1] = id
      suspects[#suspects + 1] = version
    elseif version == version_before then
      local expiry = redis.call('ZSCORE', EXPIRY, id)
      examine(id, raw, {}, expiry and tonumber(expiry) or nil, redis.call('HGET', HOLDERS, id), is_in_line, now)
    end
  end
end
return { suspects, findings }
