-- The store's clock in whole milliseconds: deferd uses no other, so that hosts with skewed clocks agree.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
