-- Replaces clock.lua in a service started for tests: the store's clock plus the offset in `deferd:{s}:clock` (integer
-- ms; advance.lua moves it). Never loaded otherwise.
-- @include topic
local called_at_ms

local function now_ms()
  return called_at_ms + (redis.call('GET', string.match(KEYS[1], '^[^}]*}:') .. 'clock') or 0)
end
