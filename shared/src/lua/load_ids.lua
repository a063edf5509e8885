-- Purpose:   make Redis know the pending tasks that DynamoDB knows
-- KEYS:      future, topic, lease of one partition
-- ARGV:      now (ms); the score above which a lease is doubted (ms), or '' for none; then pairs: id, due time (ms)
-- Returns:   how many ids were put into future; then the ids whose state only DynamoDB can tell: due ones that
--            Redis does not have or has for a later time, and doubted leases
-- Atomicity: one step; the caller sends at most 500 pairs
-- Repeat:    changes nothing
local now, doubt = tonumber(ARGV[1]), tonumber(ARGV[2])
local ids, dues = {}, {}
for i = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  dues[#dues + 1] = ARGV[i + 1]
end
local futures = redis.call('ZMSCORE', KEYS[1], unpack(ids))
local leases = redis.call('ZMSCORE', KEYS[3], unpack(ids))
local topic
local function in_topic(id)
  if not topic then
    topic = {}
    for _, member in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
      topic[member] = true
    end
  end
  return topic[id]
end

local add, answer = {}, { 0 }
for i, id in ipairs(ids) do
  local due = tonumber(dues[i])
  local future, lease = tonumber(futures[i] or nil), tonumber(leases[i] or nil)
  local late = future and future > now and due < future
  if late and due > now or not future and not lease and due > now then
    add[#add + 1] = dues[i]
    add[#add + 1] = id
  elseif late
    or not future and lease and doubt and lease > doubt
    or not future and not lease and not in_topic(id)
  then
    answer[#answer + 1] = id
  end
end
if #add > 0 then
  redis.call('ZADD', KEYS[1], unpack(add))
  answer[1] = #add / 2
end
return answer
