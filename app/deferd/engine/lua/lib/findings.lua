-- What a consistency check has found.
local findings = {}

-- Add a finding: its kind (engine/consistency.py lists them), its subject, and the details.
local function report(kind, subject, detail)
  findings[#findings + 1] = kind
  findings[#findings + 1] = subject
  findings[#findings + 1] = detail
end
