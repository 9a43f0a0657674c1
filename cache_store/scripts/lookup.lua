-- Leading blocks of a chain that each incarnation holds.
-- KEYS: one set of digests per incarnation. ARGV[1]: the chain, 16 bytes per digest, parent first.
-- Returns one number per key. Who holds a block holds its ancestors, so a binary search finds the end; the end that was
-- found for another key is tried first, since of a prompt that many hold in part, they often hold the same part.
local chain = ARGV[1]
local length = #chain / 16

local function holds(key, position)
  return redis.call('SISMEMBER', key, string.sub(chain, position * 16 - 15, position * 16)) == 1
end

local found, guess = {}, 0
for i, key in ipairs(KEYS) do
  local low, high = 0, length -- holds `low` blocks, and no more than `high`
  if not holds(key, 1) then
    high = 0 -- most workers hold nothing of a chain
  elseif holds(key, length) then
    low = length -- the one that served it before holds all
  else
    low, high = 1, length - 1
    if guess > 0 then
      if holds(key, guess + 1) then
        low = guess + 1
      elseif holds(key, guess) then
        low, high = guess, guess
      else
        high = guess - 1
      end
    end
  end
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if holds(key, middle) then
      low = middle
    else
      high = middle - 1
    end
  end
  if low > 0 and low < length then
    guess = low
  end
  found[i] = low
end
return found
