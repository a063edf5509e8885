-- Purpose:   take what is due: ended leases go to the end of the line, then up to ARGV[2] due ids become leases.
-- KEYS:      future, topic, lease of one partition
-- ARGV:      now (ms), how many ids at most, the end of the new leases (ms)
-- Returns:   the first score left in future or lease, or '' when there is none or more is due; then the ids
-- Atomicity: one step; at most 100 ended leases a call
-- Repeat:    takes the next ids; those of the first call come back when their lease ends
local now, most, lease_end = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Changes nothing, but fails where Redis takes no writes: nobody could tell it of new tasks, so it must not say that
-- there are none.
redis.call('ZADD', KEYS[3], 'XX', 0, '')

local ended = redis.call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
if #ended > 0 then
  local back = {}
  for _, id in ipairs(ended) do
    back[#back + 1] = now
    back[#back + 1] = id
  end
  redis.call('ZADD', KEYS[1], unpack(back))
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, #ended - 1)
end

local ids = redis.call('LPOP', KEYS[2], most) or {}
if #ids < most then
  local due = redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, most - #ids)
  if #due > 0 then
    redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1)
    for _, id in ipairs(due) do
      ids[#ids + 1] = id
    end
  end
end

local next_score = ''
if #ids < most then
  local first_future = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
  local first_lease = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
  next_score = first_future or first_lease or ''
  if first_future and first_lease and tonumber(first_lease) < tonumber(first_future) then
    next_score = first_lease
  end
end

if #ids > 0 then
  local leases = {}
  for _, id in ipairs(ids) do
    leases[#leases + 1] = lease_end
    leases[#leases + 1] = id
  end
  redis.call('ZADD', KEYS[3], unpack(leases))
end
table.insert(ids, 1, next_score)
return ids
