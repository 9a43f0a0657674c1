-- Leading blocks of a chain that each incarnation holds.
-- KEYS: one set of digests per incarnation. ARGV[1]: the chain, 16 bytes per digest, parent first.
-- Returns one number per key. Who holds a block holds its ancestors, so a binary search finds the end. First one call
-- asks for the places where most searches end: most hold nothing or all, and of a prompt that many hold in part, they
-- often hold the same part, so the end that was found for another key is a good guess.
local chain = ARGV[1]
local length = #chain / 16

local function digest(position)
  return string.sub(chain, position * 16 - 15, position * 16)
end

local first, last = digest(1), digest(length)

-- Returns how many are held at least and at most.
local function bounds(key, guess)
  if guess == 0 then
    local held = redis.call('SMISMEMBER', key, first, last)
    if held[1] == 0 then
      return 0, 0
    elseif held[2] == 1 then
      return length, length
    end
    return 1, length - 1
  end
  local held = redis.call('SMISMEMBER', key, first, digest(guess), digest(guess + 1), last)
  if held[1] == 0 then
    return 0, 0
  elseif held[4] == 1 then
    return length, length
  elseif held[3] == 1 then
    return guess + 1, length - 1
  elseif held[2] == 1 then
    return guess, guess
  end
  return 1, guess - 1
end

local found, guess = {}, 0
for i, key in ipairs(KEYS) do
  local low, high = bounds(key, guess)
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if redis.call('SISMEMBER', key, digest(middle)) == 1 then
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
