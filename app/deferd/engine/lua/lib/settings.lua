-- The settings of a topic, which lib/topic.lua describes, as they are stored now. Before version 0.2 the policy was not in
-- an object of its own but beside the rest, with `d` for the deadline; `l` was the durability and `w` the defaults for due
-- times. No setting has one of these keys now, so a look tells. They are stored as they are until they are replaced.
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
