-- Functions of Lua and of the store as locals: a global costs a script three times as much. There are none while a store
-- loads the library, so the first call takes them.
local function builtins() return redis, string, struct, math, cjson, ipairs, unpack, tonumber, type end
local library = redis  -- what there is while a store loads the library
local redis, string, struct, math, cjson, ipairs, unpack, tonumber, type
-- Formats whole numbers. %d takes half the time of %.0f, but on some servers has only 32 bits.
local WHOLE

local function take_builtins()
  redis, string, struct, math, cjson, ipairs, unpack, tonumber, type = builtins()
  WHOLE = string.format('%d', 2 ^ 47) == string.format('%.0f', 2 ^ 47) and '%d' or '%.0f'
end
