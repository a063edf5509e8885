-- Purpose:   put each id into the one place where it belongs, out of the others
-- KEYS:      future, topic, lease of one partition
-- ARGV:      triples: id, place ('future', 'lease' or 'nowhere'), score (ms)
-- Returns:   the number of ids
-- Atomicity: one step; the list, at most 1,000 long, is searched only for an id that is in neither set
-- Repeat:    changes nothing
for i = 1, #ARGV, 3 do
  local id, place, score = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local found = 0
  if place ~= 'future' then
    found = found + redis.call('ZREM', KEYS[1], id)
  end
  if place ~= 'lease' then
    found = found + redis.call('ZREM', KEYS[3], id)
  end
  local new = 1
  if place == 'future' then
    new = redis.call('ZADD', KEYS[1], score, id)
  elseif place == 'lease' then
    new = redis.call('ZADD', KEYS[3], score, id)
  end
  if found == 0 and new == 1 then
    redis.call('LREM', KEYS[2], 0, id)
  end
end
return #ARGV / 3
