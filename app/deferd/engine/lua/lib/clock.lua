-- The store's clock in whole milliseconds: deferd uses no other, so that hosts with skewed clocks agree. It stands still
-- during a call.
local called_at_ms  -- set by lib/calls.lua

local function now_ms() return called_at_ms end
