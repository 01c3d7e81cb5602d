-- Pop ready jobs of one topic and finish them, in one step: what becomes of them is what a pop and a finish without a
-- result do, one right after the other.
-- @flags allow-oom
-- KEYS: see lib/topic.lua
-- ARGV[1] topic | ARGV[2] how long a dead job is kept, ms | ARGV[3..] how many jobs, for each request
-- Returns what pop.lua returns, without a job that was not finished: only a damaged store can have one, and that comes
--   back when its lease ends.
-- Bound: that of pop.lua; the caller asks for at most 1000 jobs.
local NONCE_AND_ATTEMPTS_AT = 13
local pop_args, all = { ARGV[1], ARGV[2] }, { ARGV[1] }
for at = 3, #ARGV do
  local first = #pop_args
  pop_args[first + 1], pop_args[first + 2], pop_args[first + 3], pop_args[first + 4] = ARGV[at], 0, '', ''
end
local popped = scripts.pop(KEYS, pop_args)
if type(popped) == 'number' then return popped end  -- the jobs of the topic are pushed
for _, reply in ipairs(popped[4]) do
  for at = 2, #reply, 3 do
    local nonce, attempts = struct.unpack('<I6I4', reply[at + 1], NONCE_AND_ATTEMPTS_AT)
    all[#all + 1] = reply[at]
    all[#all + 1] = struct.pack('<I6I4', nonce, attempts + 1)
  end
end
if #all == 1 then return popped end
local codes, index = scripts.finish(KEYS, all), 0
for _, reply in ipairs(popped[4]) do
  local kept = 1
  for at = 2, #reply, 3 do
    index = index + 1
    local id, raw, lease_end = reply[at], reply[at + 1], reply[at + 2]
    reply[at], reply[at + 1], reply[at + 2] = nil, nil, nil
    if codes[index] == 0 then
      reply[kept + 1], reply[kept + 2], reply[kept + 3] = id, raw, lease_end
      kept = kept + 3
    end
  end
end
return popped
