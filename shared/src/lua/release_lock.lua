-- Purpose:   release a lock that is still the caller's
-- KEYS:      the lock
-- ARGV:      the caller's token
-- Returns:   1 when released, 0 when it is another's or ended
-- Atomicity: one step
-- Repeat:    changes nothing
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
