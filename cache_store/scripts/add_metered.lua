-- Adds a writer's batch of counts to the hours that it names, once.
-- KEYS[1]: hash writer -> number of its last batch and hour of it. KEYS[2...]: one hash per hour, tenant -> counts.
-- ARGV: writer, number of the batch, number of the oldest one that the writer still has, hours that are retained; then
-- for each hour: its number, the number of its lines, and tenant and counts (`kind:number ...`) of each.
-- Returns the number of the writer's last batch.
local number, oldest, retained = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local known = redis.call('HGET', KEYS[1], ARGV[1])
local last = known and tonumber(string.match(known, '^(%d+)')) or 0
if number <= last or number > math.max(last + 1, oldest) then
  return last
end

local function merged(text, more)
  local order, sums = {}, {}
  for _, part in ipairs({text, more}) do
    for kind, count in string.gmatch(part, '([%a_]+):(%d+)') do
      if not sums[kind] then
        order[#order + 1] = kind
      end
      sums[kind] = (sums[kind] or 0) + tonumber(count)
    end
  end
  for at, kind in ipairs(order) do
    order[at] = kind .. ':' .. string.format('%.0f', sums[kind])
  end
  return table.concat(order, ' ')
end

local now = tonumber(redis.call('TIME')[1])
local at = 5
for each = 2, #KEYS do
  local hour, lines = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, lines do
    local before = redis.call('HGET', KEYS[each], ARGV[at]) or ''
    redis.call('HSET', KEYS[each], ARGV[at], merged(before, ARGV[at + 1]))
    at = at + 2
  end
  redis.call('EXPIREAT', KEYS[each], string.format('%.0f', math.max(hour * 3600, now) + retained * 3600))
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f', number, now / 3600))

-- Writers that are gone for as long as their hours are forgotten too.
local some = redis.call('HRANDFIELD', KEYS[1], 4, 'WITHVALUES')
for field = 1, #some, 2 do
  local hour = tonumber(string.match(some[field + 1], ' (%d+)$'))
  if not hour or hour + retained < now / 3600 then
    redis.call('HDEL', KEYS[1], some[field])
  end
end
return number
