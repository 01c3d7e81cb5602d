-- What every call of the store begins with. engine/script_library.py puts this behind the rest of lib/ and before the
-- scripts, which are functions of KEYS and ARGV. What is outside functions runs once, when a store loads the library: it
-- has none of Lua's own functions then, and what it sets stays from call to call.

-- All scripts by verb, for scripts that do in one step what others do: these may be called with KEYS and ARGV of their
-- own.
local scripts = {}

-- Set all that the files of lib/ know of a call: nothing may be left of the call before, which may have ended in an error.
local function begin_call(keys, argv)
  KEYS, ARGV, TOPIC, made_attached = keys, argv, argv[1], nil
  FLOWS.states, FLOWS.slots = nil, nil
  ENDS.known, ENDS.noted = nil, nil
  POOL, DELAY, READY, RESERVED, DEAD, FINISHED, EXPIRY, HOLDERS, CANCELLED, SETTINGS, TOPICS, DUE, TALLY, REQUESTS, TAGGED,
    TAKEN = unpack(keys, 1, 16)
end

-- Do what the ends of jobs have noted.
local function act_on_ends(keys, argv)
  if not ENDS.noted then return end
  ENDS.act(scripts)
  begin_call(keys, argv)  -- also after an error in the middle of another script
end

-- Register a script. `flags` are those of the store's functions: with no-writes it only reads; with allow-oom it also runs
-- in a store that is out of memory, and else such a store refuses the call.
--
-- The last argument of a call is the instant, in ms of the store's clock, at which the caller gives the call up. From then
-- on the call does nothing: the caller may have made another meanwhile, and got a response. The script does not see the
-- argument. Tests that move the clock do not move this one.
local function register(verb, flags, run)
  local function callback(keys, argv)
    if not redis then take_builtins() end
    local called_at = redis.call('TIME')
    called_at_ms = called_at[1] * 1000 + math.floor(called_at[2] / 1000)
    if called_at_ms >= tonumber(argv[#argv]) then return redis.error_reply('TOOLATE ' .. called_at_ms) end
    argv[#argv] = nil
    begin_call(keys, argv)
    local reply = run(keys, argv)
    if FLOWS.states then FLOWS.store() end
    act_on_ends(keys, argv)
    return reply
  end

  scripts[verb] = function(keys, argv)
    local outer_keys, outer_argv, ends = KEYS, ARGV, ENDS.noted
    if FLOWS.states then FLOWS.store() end
    begin_call(keys, argv)
    ENDS.noted = ends
    local reply = run(keys, argv)
    if FLOWS.states then FLOWS.store() end
    ends = ENDS.noted
    begin_call(outer_keys, outer_argv)
    ENDS.noted = ends  -- for the end of the whole call: what the caller has checked is true until then
    return reply
  end

  library.register_function{ function_name = verb .. '_' .. RELEASE, callback = callback, flags = flags }
end
