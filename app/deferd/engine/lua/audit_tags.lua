-- Check one step through the tag index of a shard: each member must be a job that has the tag.
-- @inline findings
-- @flags allow-oom
-- KEYS[1..] tag/<tag> ZSET "topic id" -> 0 | the last of KEYS: aside, the prefix of the new name of a key that is
--   renamed
-- ARGV[1] 1: repair what is found, in the same call; 0: change nothing
-- ARGV[2] member of the first key after which to begin, '' for its first | ARGV[3] most members to check
-- Returns { index in KEYS of the key with which to go on, 0 after the last one, member of it after which to begin,
--   { kind, subject, detail, ... } for each finding }
-- Bound: ARGV[3] members and the keys in KEYS; the caller sends at most 1000 of each.
local repair, after, left = ARGV[1] == '1', ARGV[2], tonumber(ARGV[3])
local aside = KEYS[#KEYS]
local prefix = string.match(aside, '^[^}]*}:')
local function has_tag(member, tag)
  local topic, id = string.match(member, '^(%S+) (%S+)$')
  local tags = topic and redis.call('HGET', prefix .. topic .. ':tagged', id)
  return tags and string.find(' ' .. tags .. ' ', ' ' .. tag .. ' ', 1, true)
end

local function check(key)
  local tag = string.sub(key, #prefix + #'tag/' + 1)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'zset' then
    if kind ~= 'none' then
      local moved_to = repair and string.format('%s/tag/%s/%s', aside, tag, redis.call('TIME')[1]) or ''
      if repair then redis.call('RENAME', key, moved_to) end
      report('wrong_type', key, repair and 'a ' .. kind .. ', now at ' .. moved_to or 'a ' .. kind)
    end
    return nil
  end
  local members = redis.call('ZRANGE', key, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, left)
  for _, member in ipairs(members) do
    if not has_tag(member, tag) then
      report('tag_stale', (string.gsub(member, ' ', '/')), tag)
      if repair then redis.call('ZREM', key, member) end
    end
  end
  left = left - #members
  return left == 0 and members[#members] or nil
end

for index = 1, #KEYS - 1 do
  local last = check(KEYS[index])
  if last then return { index, last, findings } end
  after = ''
end
return { 0, '', findings }
