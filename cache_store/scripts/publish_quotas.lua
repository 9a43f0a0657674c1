-- Writes the quotas where their head is still the one that was read.
-- KEYS[1]: hash with the fields `head` and `body`. ARGV: the head that was read or '', the new head, the new body.
-- Returns 1 where it wrote, 0 where somebody else has written meanwhile.
if (redis.call('HGET', KEYS[1], 'head') or '') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'head', ARGV[2], 'body', ARGV[3])
return 1
