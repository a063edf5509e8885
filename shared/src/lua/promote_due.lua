-- Purpose:   move what is due from the sorted set to the end of the list, in due order
-- KEYS:      future, topic of one partition
-- ARGV:      now (ms), the most ids that the list may hold
-- Returns:   how many moved
-- Atomicity: one step; at most ARGV[2] ids
-- Repeat:    moves what has become due since
local room = tonumber(ARGV[2]) - redis.call('LLEN', KEYS[2])
if room <= 0 then
  return 0
end
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, room)
if #due > 0 then
  redis.call('RPUSH', KEYS[2], unpack(due))
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1)
end
return #due
