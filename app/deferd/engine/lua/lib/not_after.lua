-- engine/script_source.py puts this before every script. The last argument is the instant, in ms of the store's clock,
-- at which the caller gives the call up. From then on the call does nothing: the caller may have made another meanwhile,
-- and got a response. The script does not see the argument. Tests that move the clock do not move this one.
local called_at = redis.call('TIME')
local called_at_ms = called_at[1] * 1000 + math.floor(called_at[2] / 1000)
if called_at_ms >= tonumber(ARGV[#ARGV]) then return redis.error_reply('TOOLATE ' .. called_at_ms) end
ARGV[#ARGV] = nil
