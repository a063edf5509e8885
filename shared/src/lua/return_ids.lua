-- Purpose:   give leases back that were taken but not used: the ids are the first in line again
-- KEYS:      topic, lease of one partition
-- ARGV:      ids, first in line first
-- Returns:   how many went back
-- Atomicity: one step
-- Repeat:    changes nothing: an id that is no lease stays where it is
local back = 0
for i = #ARGV, 1, -1 do
  if redis.call('ZREM', KEYS[2], ARGV[i]) == 1 then
    redis.call('LPUSH', KEYS[1], ARGV[i])
    back = back + 1
  end
end
return back
