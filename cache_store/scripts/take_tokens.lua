-- Takes tokens of a tenant's rate; the arithmetic of cache_store/token_bucket.py.
-- KEYS[1]: hash of level (tokens) and at (seconds of the server's clock); absent: full.
-- ARGV: tokens per second, tokens of a full bucket, tokens spent or (negative) given back, tokens wanted beyond the
-- costs, costs of requests in order.
-- Returns {requests admitted, tokens given beyond them, level as text}.
local rate, burst, spent, spare = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local known = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = tonumber(known[1] or burst)
local passed = math.max(0, now - tonumber(known[2] or now))
level = math.min(burst, math.min(burst, level + rate * passed) - spent)

local admitted = 0
for at = 5, #ARGV do
  if level <= 0 then
    break
  end
  level = level - tonumber(ARGV[at])
  admitted = admitted + 1
end
local given = 0
if admitted == #ARGV - 4 then
  given = math.min(spare, math.floor(math.max(0, level)))
  level = level - given
end

local text = string.format('%.3f', level)
redis.call('HSET', KEYS[1], 'level', text, 'at', string.format('%.6f', now))
-- Forgotten when it is full again.
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil((burst - level) / rate * 1000) + 1000))
return {admitted, given, text}
