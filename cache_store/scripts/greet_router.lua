-- Counts the routers that ask, and names the life of the store's data.
-- KEYS[1]: sorted set of routers by the end of their lease in milliseconds. KEYS[2]: name given at the first call.
-- ARGV: router, milliseconds of the lease.
-- Returns {routers, name}.
local lease_ms = tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease_ms), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], lease_ms)
local name = redis.call('GET', KEYS[2])
if not name then
  name = time[1] .. '.' .. time[2]
end
redis.call('SET', KEYS[2], name, 'PX', 2 * lease_ms)
return {redis.call('ZCARD', KEYS[1]), name}
