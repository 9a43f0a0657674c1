-- Renews the lease of an incarnation, unless a newer incarnation of the same worker has renewed.
-- KEYS[1]: hash worker id -> "ORDER INCARNATION" of its newest incarnation. KEYS[2]: the lease.
-- ARGV: worker id, incarnation, its order or '' at the first renewal, record, milliseconds.
-- Returns {state, order}; state: 'new', 'kept' or 'superseded'.
-- Orders are microseconds of the server's clock at the first renewal; never below one that was given to that worker.
local worker, incarnation, record, lease_ms = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local order = tonumber(ARGV[3])
local current_order, current_incarnation = 0, nil
local current = redis.call('HGET', KEYS[1], worker)
if current then
  local number, name = string.match(current, '^(%d+) (%w+)$')
  current_order, current_incarnation = tonumber(number or 0), name
end

if order == nil and current_incarnation == incarnation then
  order = current_order -- the answer to the first renewal was lost
elseif order == nil then
  local now = redis.call('TIME')
  order = math.max(now[1] * 1000000 + now[2], current_order + 1)
end

local text = string.format('%.0f', order)
if current_incarnation ~= nil and current_incarnation ~= incarnation and current_order >= order then
  return {'superseded', text}
end
local before = redis.call('SET', KEYS[2], record, 'PX', lease_ms, 'GET')
redis.call('HSET', KEYS[1], worker, text .. ' ' .. incarnation)
return {before and 'kept' or 'new', text}
