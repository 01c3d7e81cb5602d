-- The store's own clock in whole milliseconds: the only clock of deferd, so hosts with skewed clocks agree.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
