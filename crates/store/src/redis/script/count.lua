-- Counts hits of any number of counters at once, on this server's own clock.
--
-- KEYS are counters. ARGV[1] is 1 if counters within their limit are not to be counted when
-- another would go over. Seven arguments follow for each key:
--   kind      f: a window of so many seconds   m: of so many months of the calendar
--             s: a sliding window of seconds   n: of months     b: a bucket
--             c: a window that the key names; it is kept for so many seconds
--   hits      to count; 0: only look; below 0: give back, down to none
--   limit     of the window, or what a bucket holds
--   length    seconds, or months
--   known     what was counted when it was last seen: taken up if the key is gone
--   end       the window that this was seen in, by the second at which it ends; 0 with b and c
--   force     1: it has happened elsewhere and is counted whatever the limit, unless that
--             window has ended; 2 more: what is known of a window is taken up if it is more than is
--             here, for this server was away and may have lost it
--
-- Answers seconds and microseconds of the clock, and for each key the hits before and after; over
-- the limit also where they were not counted for that (s, n and b).

local clock = redis.call('TIME')
local second, micro = tonumber(clock[1]), tonumber(clock[2])

-- Days since the epoch until the first of a month, months counted from January 1970.
local function first_day(month)
  local year, of = 1970 + math.floor(month / 12), month % 12
  -- Years that begin in March have their odd day at the end.
  local y = of < 2 and year - 1 or year
  local shifted = (of + 10) % 12
  local days = math.floor((153 * shifted + 2) / 5)
  return 365 * y + math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400) + days - 719468
end

-- Where the window that is now begins and ends.
local function window(length, months)
  if not months then
    local begin = math.floor(second / length) * length
    return begin, begin + length
  end
  local day = math.floor(second / 86400)
  local month = math.floor(day / 31)
  while first_day(month + 1) <= day do month = month + 1 end
  local block = math.floor(month / length) * length
  return first_day(block) * 86400, first_day(block + length) * 86400
end

-- A count that Redis forgets when the window ends, so it needs no word of which window it is.
local function fixed(key, hits, known, returned, keep)
  if hits <= 0 then
    local there = redis.call('GET', key)
    local used = math.max(tonumber(there) or known, 0)
    local back = math.min(used, -hits)
    if back > 0 and there then redis.call('INCRBY', key, -back) end
    return used, used - back
  end
  local used = redis.call('INCRBY', key, hits)
  if used == hits and redis.call('TTL', key) == -1 then
    if known > 0 then used = redis.call('INCRBY', key, known) end
    keep(key)
  elseif returned and known > used - hits then
    used = redis.call('INCRBY', key, known - (used - hits))
  end
  return used - hits, used
end

-- The hits of this window and of the one before, and when this one ends.
local function sliding(key, hits, limit, begin, finish, known, force)
  local state = redis.call('GET', key)
  local of, own, before = finish, known, 0
  if state then
    local a, b, c = string.match(state, '^(%d+) (%d+) (%d+)$')
    a, b, c = tonumber(a) or 0, tonumber(b) or 0, tonumber(c) or 0
    -- One window ahead it was written by a clock that was set back since.
    if a >= finish and a - finish <= finish - begin then
      of, own, before = a, b, c
    elseif a == begin then
      own, before = 0, b
    else
      own, before = 0, 0
    end
  end
  local left = (finish - second) * 1000000 - micro
  local used = math.ceil(before * left / ((finish - begin) * 1000000)) + own
  local after = math.max(used + hits, 0)
  if hits ~= 0 and (force or hits < 0 or after <= limit) then
    local kept = string.format('%.0f %.0f %.0f', of, math.max(own + hits, 0), before)
    redis.call('SET', key, kept, 'EX', of + finish - begin - second)
  end
  return used, after
end

-- How many microseconds it is from full, and as of when.
local function bucket(key, hits, limit, length, known, force)
  if limit <= 0 then return 0, math.max(hits, 0) end
  local now = second * 1000000 + micro
  local each = length * 1000000 / limit
  local short = known * each
  local state = redis.call('GET', key)
  if state then
    local a, b = string.match(state, '^(%S+) (%d+)$')
    short = math.max((tonumber(a) or 0) - math.max(now - (tonumber(b) or now), 0), 0)
  end
  -- A part of a hit counts as a whole one, but what comes of rounding does not.
  local used = math.ceil(math.max(short - 0.004, 0) / each - 1e-9)
  local after = math.max(used + hits, 0)
  if hits ~= 0 and (force or hits < 0 or after <= limit) then
    short = math.max(short + hits * each, 0)
    local kept = string.format('%.17g %.0f', short, now)
    redis.call('SET', key, kept, 'PX', math.ceil(short / 1000) + 1000)
  end
  return used, after
end

local function count(index, look)
  local at, key = 7 * index - 5, KEYS[index]
  local kind, hits, limit = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local length, known = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local of, word = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local force, returned = word % 2 == 1, word >= 2
  if look then hits = 0 end
  if kind == 'c' then
    return fixed(key, hits, known, returned, function(k) redis.call('EXPIRE', k, length) end)
  elseif kind == 'b' then
    return bucket(key, hits, limit, length, known, force)
  end
  local begin, finish = window(length, kind == 'm' or kind == 'n')
  if of ~= finish then
    known = 0
    if force then hits = 0 end
  end
  if kind == 'f' or kind == 'm' then
    -- What has ended by TIME may not have ended by the clock that keys end by, which stands still
    -- while the server works off what it has read.
    if second == begin and micro < 500000 then
      local left = redis.call('PTTL', key)
      if left >= 0 and left <= 500 then redis.call('DEL', key) end
    end
    return fixed(key, hits, known, returned, function(k) redis.call('EXPIREAT', k, finish) end)
  end
  return sliding(key, hits, limit, begin, finish, known, force)
end

local stopped = false
if ARGV[1] == '1' then
  for index = 1, #KEYS do
    local hits, limit = tonumber(ARGV[7 * index - 4]), tonumber(ARGV[7 * index - 3])
    local used = count(index, true)
    if hits >= 0 and used + hits > limit then stopped = true end
  end
end
local answer = { second, micro }
for index = 1, #KEYS do
  local look = false
  if stopped then
    local hits, limit = tonumber(ARGV[7 * index - 4]), tonumber(ARGV[7 * index - 3])
    look = hits >= 0 and count(index, true) + hits <= limit
  end
  answer[#answer + 1], answer[#answer + 2] = count(index, look)
end
return answer
