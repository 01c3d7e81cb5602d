-- The terms of a call (engine/placement.py): the settings of its topic as the sender knows them.
-- @include shelf

-- What a script returns, and nothing is stored, when the terms of a call are not those of the topic:
-- { 'terms', the topic's default durability, number of partitions, defaults for due times or '', the first generation in
-- which the shelf must have been asked, 0 when it has no jobs of the topic }. Nil when they are. Any default durability is
-- right for terms with -1, any number of partitions for those with 0, and NO_SHELF says that none needs to be asked. A
-- durability of 0 is satisfied by every call, and with `higher_satisfies` each one by a higher one.
local function outdated_terms(settings, terms, higher_satisfies)
  local durability, partitions, placing = settings.du or 0, settings.n or 1, settings.pl or ''
  local NO_SHELF = 9007199254740991
  local satisfied, known, asked, at = struct.unpack('<i2I2I8', terms)
  local is_satisfied = durability == 0 or satisfied < 0 or satisfied == durability
    or higher_satisfies and satisfied > durability
  local is_placed = at > #terms and placing == '' or string.sub(terms, at) == placing
  local first = asked == NO_SHELF and 0 or SHELF.first_generation()
  if is_satisfied and (known == 0 or known == partitions) and is_placed and asked >= first then return nil end
  return { 'terms', durability, partitions, placing, first }
end
