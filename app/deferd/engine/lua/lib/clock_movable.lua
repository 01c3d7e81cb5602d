-- Replaces clock.lua in a service started for tests: the store's clock plus the offset in `deferd:{s}:clock` (integer
-- ms; advance.lua moves it). Never loaded otherwise.
local function now_ms()
  local time = redis.call('TIME')
  local offset = redis.call('GET', string.match(KEYS[1], '^[^}]*}:') .. 'clock')
  return time[1] * 1000 + math.floor(time[2] / 1000) + (offset or 0)
end
