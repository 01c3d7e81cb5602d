-- The log of a job's attempts that ended without a finish: its last ones.
-- @include record
local MOST_LOGGED, MOST_LOGGED_BYTES = 10, 500

-- Note in a job's record how its last attempt ended without a finish. Only the last attempts are kept, with the first
-- bytes of their errors, which never end within a character.
local function log_attempt(record, now, how, consumer, error)
  local log, text = record.extra.a or {}, error or ''
  if #log == MOST_LOGGED then table.remove(log, 1) end
  if #text > MOST_LOGGED_BYTES then
    local last = MOST_LOGGED_BYTES
    while last > 0 and string.find(string.sub(text, last + 1, last + 1), '[\128-\191]') do last = last - 1 end
    text = string.sub(text, 1, last)
  end
  log[#log + 1] = { record.attempts, now, how, consumer or '', text }
  record.extra.a = log
end
