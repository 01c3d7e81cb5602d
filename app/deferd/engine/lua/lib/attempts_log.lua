-- The log of a job's attempts that ended without a finish: its last ones. After record.
local MOST_LOGGED, MOST_LOGGED_BYTES = 10, 500

-- The first bytes of a text, without a part of a character at the end.
local function shortened(text)
  local last = MOST_LOGGED_BYTES
  if #text <= last then return text end
  while last > 0 and string.find(string.sub(text, last + 1, last + 1), '[\128-\191]') do last = last - 1 end
  return string.sub(text, 1, last)
end

-- Note in a job's record how its last attempt ended without a finish. Only the last attempts are kept.
local function log_attempt(record, now, how, consumer, error)
  local log = record.extra.a or {}
  if #log == MOST_LOGGED then table.remove(log, 1) end
  log[#log + 1] = { record.attempts, now, how, consumer or '', shortened(error or '') }
  record.extra.a = log
end
