-- Check that each key is of its kind; one that is not makes every other script that meets it fail.
-- KEYS[1..] the keys | the last of KEYS: aside, what stands before the name of a key that is moved out of the way
-- ARGV[1] topic, or '' for the keys of a shard | ARGV[2] 1: move such keys out of the way, unharmed
-- ARGV[3..] the kind of each key
-- Returns { key, its kind, where it was moved to or '' of each damage ... }
-- Bound: the keys given.
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
