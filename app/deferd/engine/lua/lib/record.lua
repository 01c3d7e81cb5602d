-- A job's record in the Job Pool; engine/record.py documents the layout:
--   created u48 | due u48 | nonce u48 | attempts u32 | length of extra u32 | extra | rest (result and body)
local NONCE_LIMIT = 2 ^ 47
local DEFAULT_TTR_MS = 60000
local HEADER_BYTES = 26
local NO_EXTRA = '\0\0\0\0'  -- the length of the extra of most jobs

local function read_record(raw)
  local created, due, nonce, attempts, length, at = struct.unpack('<I6I6I6I4I4', raw)
  return {
    created = created,
    due = due,
    nonce = nonce,
    attempts = attempts,
    extra = length > 0 and cjson.decode(string.sub(raw, at, at + length - 1)) or {},
    rest = string.sub(raw, at + length),
  }
end

local function write_record(record)
  local extra = next(record.extra) and cjson.encode(record.extra) or ''
  return struct.pack('<I6I6I6I4I4', record.created, record.due, record.nonce, record.attempts, #extra)
    .. extra .. record.rest
end

-- The extra of a record, without copying its body.
local function read_extra(raw)
  local length, at = struct.unpack('<I4', raw, 23)
  return length > 0 and cjson.decode(string.sub(raw, at, at + length - 1)) or {}
end

-- The fields that a receipt is compared with, without reading the rest.
local function read_nonce_and_attempts(raw)
  local nonce, attempts = struct.unpack('<I6I4', raw, 13)
  return nonce, attempts
end

-- Whether the receipt (nonce, attempt) is that of the live delivery; attempt 0 matches any.
local function receipt_matches(raw, nonce, attempt)
  if attempt == 0 then
    return true
  end
  local live_nonce, ended = read_nonce_and_attempts(raw)
  return live_nonce == nonce and ended + 1 == attempt
end

-- Make all earlier receipts of the job void.
local function void_receipts(record)
  record.nonce = (record.nonce + 1) % NONCE_LIMIT
end
