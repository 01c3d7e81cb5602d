-- The shelf: delayed jobs that are far away, in files of the service instead of the store (shelf/moving.py). A job is in
-- the store or on the shelf, never in both. A topic that has, or had, jobs there has one more key:
--   shelf  HASH out, in: the last numbers of batches that left and came back. One that comes with such a number, or a
--               lower one, is late, and nothing is done
--               out_token, in_token: what names the last batches that were moved
--               kept: of the last batch out, the ids that stayed, separated by spaces
--               generation: the shelf was asked for ids in generations, and the ids of earlier ones may have left. A put
--               by one that asked in an earlier one does nothing
--               jobs, tags: how many jobs are on the shelf, and how many tags these have
--               bytes: what they would use in the store but for an overhead by jobs and tags, as usage.lua counts it
-- @include topic transitions

local SHELF = {}  -- the functions of the shelf

function SHELF.number(way) return tonumber(redis.call('HGET', topic_key('shelf'), way) or 0) end

-- The first generation in which the shelf must have been asked for an id that is put, 0 when it has no jobs of the topic.
-- Any will do where the store has lost which one that is.
function SHELF.first_generation()
  local jobs, generation = unpack(redis.call('HMGET', topic_key('shelf'), 'jobs', 'generation'))
  return jobs and tonumber(jobs) > 0 and tonumber(generation or 1) or 0
end

-- Which of these ids of delayed jobs stay in the store: runs of schedules, which their schedule counts, jobs with a
-- follow-up, those under which items are collected, and those that become dead before they are due, because of their
-- deadline. Returns the set of them. Bound: the ids, at most 1000.
function SHELF.staying(ids)
  local found, here = {}, attached()
  if redis.call('EXISTS', EXPIRY) == 1 then
    local dues = redis.call('ZMSCORE', DELAY, unpack(ids))
    for index, expiry in ipairs(redis.call('ZMSCORE', EXPIRY, unpack(ids))) do
      if expiry and dues[index] and tonumber(expiry) < tonumber(dues[index]) then found[ids[index]] = true end
    end
  end
  if not here.may_exist() then return found end
  for _, key in ipairs({ here.FOLLOW, here.ITEMS, here.RUNS }) do
    for index, value in ipairs(redis.call('HMGET', key, unpack(ids))) do
      if value then found[ids[index]] = true end
    end
  end
  return found
end

-- Add a job to the size of a batch; `tags` are its tags, separated by spaces, or nothing. `sign` is -1 for one that comes
-- back.
function SHELF.add(size, sign, id, raw, tags)
  local bytes, count = 2 * #id + #raw, 0
  if tags then
    count = select(2, string.gsub(tags, ' ', ' ')) + 1
    bytes = bytes + #id + 2 * #tags + count * (#TOPIC + #id)
  end
  size.jobs, size.bytes, size.tags = size.jobs + sign, size.bytes + sign * bytes, size.tags + sign * count
end

-- Note a batch that moved; one out has the ids that stayed, and the generation. Its token comes last: from then on the
-- batch counts as moved (shelve_settle.lua).
function SHELF.note_batch(way, number, token, size, kept, generation)
  local key = topic_key('shelf')
  for field, change in pairs(size) do redis.call('HINCRBY', key, field, change) end
  redis.call('PEXPIRE', key, 100 * 365 * 86400000)  -- it may have been that of a forgotten topic; see forget_topic
  if kept then redis.call('HSET', key, 'kept', kept, 'generation', generation) end
  redis.call('HSET', key, way, number, way .. '_token', token)
end
