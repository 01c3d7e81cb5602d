-- Load for wrk (-s), one thread. Argument: a file of requests, each after a line with its length. They are sent once, in
-- order; at the end it prints one line: responses, and how many of them were no success.
local ffi = require('ffi')
ffi.cdef 'int getpid(void); int kill(int pid, int signal);'
local SIGINT = 2

local requests, sent = {}, 0
responses, failed = 0, 0

local threads = {}
function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  local file = assert(io.open(args[1], 'rb'))
  for line in file:lines() do
    requests[#requests + 1] = file:read(tonumber(line))
  end
  file:close()
end

function request()
  sent = sent + 1
  return requests[sent] or 'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n'
end

function response(status)
  responses = responses + 1
  if status >= 300 then failed = failed + 1 end
  if responses == #requests then ffi.C.kill(ffi.C.getpid(), SIGINT) end -- stop() would not end the wait for the time
end

function done()
  for _, thread in ipairs(threads) do
    print(string.format('RESULT %d %d', thread:get('responses'), thread:get('failed')))
  end
end
