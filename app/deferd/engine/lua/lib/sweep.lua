-- What redrive.lua and purge.lua have in common: steps through many jobs of one topic (engine/topic_sweeps.py). After the
-- keys of lib/topic.lua such a script takes ARGV[1], the topic, and ARGV[2], a JSON object, in which are, if they apply:
--     reason   only jobs that are dead for this reason
--     tag      only jobs with this tag | group  only jobs of this group
--     cutoff   only jobs that were put until this ms, and dead ones that died until then, as far as it is known
--     samples  change nothing, only count; how many of the jobs to name
--     score, id  begin behind this job, the last that the step before looked at; left out to begin with the first one
--     to_score, to_id  the end of a range of delayed jobs, see lib/paging.lua
--     request  the name of the key bulk/<request> of the shard, a HASH whose field `done` counts the jobs of all steps
--     kept     with `request`: for how long it is kept, ms
-- It looks at jobs until the records that it has read, with their bodies, reach MOST_BYTES.
-- It returns { jobs that matched, 1 when there may be more, else 0, score and id of the last job looked at, how many were
-- looked at, then two for each sample: id | state }. With ids the next step begins behind those looked at.
local OPTIONS = cjson.decode(ARGV[2])
local now = now_ms()
local MOST_BYTES = 1024 * 1024
local bytes = 0

local function has_tag(id)
  local tags = redis.call('HGET', TAGGED, id)
  return tags and string.find(' ' .. tags .. ' ', ' ' .. OPTIONS.tag .. ' ', 1, true)
end

-- The record of a job, '' for none.
local function read_raw(id)
  local raw = redis.call('HGET', POOL, id) or ''
  bytes = bytes + #raw
  return raw
end

local function has_reason(extra) return not OPTIONS.reason or extra.d == OPTIONS.reason end

local function is_of_group(raw) return not OPTIONS.group or FLOWS.group_of(FLOWS.of_raw(raw)) == OPTIONS.group end

-- Whether a job with this record counts: an extra without `da` is that of a job that lives.
local function was_there(created, extra)
  return not OPTIONS.cutoff or created <= OPTIONS.cutoff and (extra.da or 0) <= OPTIONS.cutoff
end

-- The ids in ARGV, or a page of the sorted set; their scores; and 1 when there may be more.
local function ids_or_page(key, most)
  local ids, scores = {}, {}
  for at = 3, #ARGV do
    ids[at - 2] = ARGV[at]
  end
  if #ids > 0 then return ids, scores, 0 end
  local from = OPTIONS.score and rank_after(key, OPTIONS.score, OPTIONS.id) or 0
  local beyond = from + most
  if OPTIONS.to_score then beyond = math.min(beyond, rank_after(key, OPTIONS.to_score, OPTIONS.to_id)) end
  if beyond <= from then return ids, scores, 0 end
  local members = redis.call('ZRANGE', key, from, beyond - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    ids[#ids + 1], scores[#scores + 1] = members[at], members[at + 1]
  end
  return ids, scores, #ids == most and 1 or 0
end

-- `matched` are ids, `states` their states in the same order, or the state of all. `looked` of `ids` were looked at.
local function sweep_reply(count, more, ids, scores, looked, matched, states)
  local reply = { count, more, scores[looked] or '', ids[looked] or '', looked }
  if OPTIONS.samples then
    for index = 1, math.min(OPTIONS.samples, #matched) do
      reply[#reply + 1] = matched[index]
      reply[#reply + 1] = type(states) == 'string' and states or states[index]
    end
  elseif OPTIONS.request and count > 0 then
    local key = of_shard('bulk/') .. OPTIONS.request
    redis.call('HINCRBY', key, 'done', count)
    redis.call('PEXPIRE', key, OPTIONS.kept)
  end
  return reply
end
