-- Keys of what operators look at that another program has replaced by others of another type.

-- Delete such a key, so that calls can make it again. `command` is HDEL for a hash. It deletes nothing else.
local function delete_if_damaged(key, command)
  local reply = redis.pcall(command or 'ZREM', key, '')
  if type(reply) == 'table' and string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call('DEL', key) end
end
