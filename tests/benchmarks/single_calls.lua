-- Load for wrk (-s), one thread. Argument "put": puts of delayed jobs. Argument "cycle": put, pop, finish in equal
-- numbers, so that each pop finds a job; a finish is sent before a pop, a pop before a put.
-- At the end it prints one line: requests, microseconds, failed calls, empty pops, p50 and p99 in microseconds.
local JSON = { ['Content-Type'] = 'application/json' }
local TOPIC = 'bench.single'
local PUT_READY = '{"topic":"' .. TOPIC .. '","body":{"order":1042,"customer":"c-17"}}'
local PUT_DELAYED = '{"topic":"' .. TOPIC .. '","delay":3600,"body":{"order":1042,"customer":"c-17"}}'

local threads = {}
empty = 0

function setup(thread)
  threads[#threads + 1] = thread
end

local stored, finishes = 0, {}

local function next_of_cycle()
  if #finishes > 0 then return table.remove(finishes) end
  if stored > 0 then
    stored = stored - 1
    return wrk.format('GET', '/topics/' .. TOPIC .. '/pop')
  end
  return wrk.format('POST', '/jobs', JSON, PUT_READY)
end

local function on_response(status, _, body)
  if status == 201 then
    stored = stored + 1
    return
  end
  if string.sub(body, 1, 8) ~= '{"jobs":' then return end
  local id, receipt = string.match(body, '"id":"([^"]+)"'), string.match(body, '"receipt":"([^"]+)"')
  if not receipt then
    empty = empty + 1
    return
  end
  finishes[#finishes + 1] = wrk.format(
    'POST', '/jobs/' .. TOPIC .. '/' .. id .. '/finish', JSON, '{"receipt":"' .. receipt .. '"}'
  )
end

function init(args)
  if args[1] == 'cycle' then
    request, response = next_of_cycle, on_response
  else
    wrk.method, wrk.body = 'POST', PUT_DELAYED
    wrk.headers['Content-Type'] = JSON['Content-Type']
  end
end

function done(summary, latency)
  local errors = summary.errors
  local nothing_found = 0
  for _, thread in ipairs(threads) do nothing_found = nothing_found + thread:get('empty') end
  print(string.format(
    'RESULT %d %d %d %d %d %d', summary.requests, summary.duration,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout, nothing_found,
    latency:percentile(50), latency:percentile(99)
  ))
end
