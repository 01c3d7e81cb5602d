-- Positions in sorted sets for pages: the members are ordered by score, those with one score by their bytes.
-- Scripts that go through delayed jobs range by range (engine/delayed_ranges.py) have the end of the range in their options:
--   to_score, to_id  only jobs up to this one, or from it on in the opposite order; left out in the last range

-- Whether a text comes after another one in a sorted set, which compares bytes. Lua's own comparison uses the server's
-- locale.
local function is_after(text, other)
  for at = 1, math.min(#text, #other) do
    local byte, other_byte = string.byte(text, at), string.byte(other, at)
    if byte ~= other_byte then return byte > other_byte end
  end
  return #text > #other
end

-- The rank of the first member after (score, id), which need not be in the set.
local function rank_after(key, score, id)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', key, middle, middle)[1], id) then high = middle else low = middle + 1 end
  end
  return low
end

-- The number of members before (score, id), which need not be in the set.
local function rank_before(key, score, id)
  local rank = rank_after(key, score, id)
  if rank > 0 and redis.call('ZRANGE', key, rank - 1, rank - 1)[1] == id then return rank - 1 end
  return rank
end
