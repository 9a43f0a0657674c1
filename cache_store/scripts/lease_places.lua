-- Leases places of a tenant's limit to a router; what the router had before is replaced.
-- KEYS[1]: hash router -> "GRANTED HELD NEEDED ENDS NUMBER", ENDS in milliseconds of the server's clock.
-- ARGV: router, number of its ask, limit, places in use, places needed, places wanted, milliseconds of the lease.
-- Returns {granted, others' places that are not used, 1 where another router has fewer than it needs}.
local router = ARGV[1]
local number, limit, held = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local needed, wanted, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local others, idle, others_want = 0, 0, 0
local own -- granted to a later ask of this router, which has overtaken this one
local known = redis.call('HGETALL', KEYS[1])
for at = 1, #known, 2 do
  local granted, used, needs, ends, last = string.match(known[at + 1], '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not ends or tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], known[at])
  elseif known[at] ~= router then
    others = others + granted
    idle = idle + granted - used
    if tonumber(needs) > tonumber(granted) then
      others_want = 1
    end
  elseif tonumber(last) >= number then
    own = tonumber(granted)
  end
end
if own then
  return {own, idle, others_want}
end

local granted = math.max(held, math.min(wanted, math.max(0, limit - others)))
if granted == 0 and needed == 0 then
  redis.call('HDEL', KEYS[1], router)
else
  redis.call('HSET', KEYS[1], router, string.format('%.0f %.0f %.0f %.0f %.0f', granted, held, needed, now + lease_ms, number))
  redis.call('PEXPIRE', KEYS[1], lease_ms)
end
return {granted, idle, others_want}
