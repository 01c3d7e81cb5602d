-- Read what relays have reported, see report_relay.lua. Read-only.
-- @flags no-writes
-- KEYS[1] relays HASH
-- Returns { now ms, { name, "ms first_ms worked_ms JSON", ... } }
-- Bound: the relays, some hundreds.
return { now_ms(), redis.call('HGETALL', KEYS[1]) }
