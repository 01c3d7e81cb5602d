-- The settings of a topic, which lib/topic.lua describes.
-- @include topic

-- Settings as they are stored now. Before version 0.2 the policy was not in an object of its own but beside the rest, with
-- `d` for the deadline; `l` was the durability and `w` the defaults for due times. No setting has one of these keys now, so
-- a look tells. They are stored as they are until they are replaced.
local function present_settings(settings)
  if settings.po then return settings end
  local policy
  for _, key in ipairs({ 't', 'm', 'b', 'x', 'r', 'q', 'i', 'd' }) do
    if settings[key] ~= nil then
      policy = policy or {}
      policy[key == 'd' and 'l' or key] = settings[key]
    end
  end
  settings.po, settings.du, settings.pl = policy, settings.du or settings.l, settings.pl or settings.w
  return settings
end

-- What a script returns, and nothing is stored, when the terms of a call (engine/terms.py) are not those of the topic:
-- { 'terms', the topic's default durability, number of partitions, defaults for due times or '' }. Nil when they are. Any
-- default durability is right for terms with -1, and any number of partitions for those with 0. One of 0 is satisfied by
-- every call, and with `higher_satisfies` each one by a higher one.
local function outdated_terms(settings, terms, higher_satisfies)
  local durability, partitions, placing = settings.du or 0, settings.n or 1, settings.pl or ''
  local satisfied, known, at = struct.unpack('<i2I2', terms)
  local is_satisfied = durability == 0 or satisfied < 0 or satisfied == durability
    or higher_satisfies and satisfied > durability
  local is_placed = at > #terms and placing == '' or string.sub(terms, at) == placing
  if is_satisfied and (known == 0 or known == partitions) and is_placed then return nil end
  return { 'terms', durability, partitions, placing }
end
