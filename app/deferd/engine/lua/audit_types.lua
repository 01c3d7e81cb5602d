-- Check the type of each key; a key of the wrong type makes every other script that uses it fail.
-- @flags allow-oom
-- KEYS[1..] the keys | the last of KEYS: aside, the prefix of the new name of a key that is renamed
-- ARGV[1] topic, or '' for the keys of a shard | ARGV[2] 1: rename keys of the wrong type, with their data
-- ARGV[3..] the expected type of each key
-- Returns { key, its type, its new name or '', ... } for each key of the wrong type
-- Bound: the keys in KEYS.
local aside, found = KEYS[#KEYS], {}
for at = 1, #KEYS - 1 do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'none' and kind ~= ARGV[at + 2] then
    local moved_to = ''
    if ARGV[2] == '1' then
      moved_to = string.format('%s/%s/%s', aside, string.match(KEYS[at], '[^:]*$'), redis.call('TIME')[1])
      redis.call('RENAME', KEYS[at], moved_to)
    end
    found[#found + 1] = KEYS[at]
    found[#found + 1] = kind
    found[#found + 1] = moved_to
  end
end
return found
