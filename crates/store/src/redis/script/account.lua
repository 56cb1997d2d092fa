-- Charges any number of buckets, on this server's own clock, by the formulas of evenkeel-core.
--
-- KEYS are buckets. ARGV[1] is 1 if none is to be charged when one of them has to wait for longer
-- than it may; else each is decided on by itself, one after the other. Times are nanoseconds ahead
-- of this server's clock, below zero behind it; a moment is seconds and nanoseconds since the
-- epoch. For each key follow:
--   kind      d: debt   g: grid   s: sliding   h: history   r: a debt of which some is given back
--   patience  the longest wait with which it is charged; -1: whatever the wait
-- and then
--   d: need, cost, at, least, known, known at, depth, reach (-1: none)
--   g: need and cost in hits, at, least, known, known at, tokens, period, burst, a moment where a
--      period began
--   s: cost, at, round, window, max, part, parts, number of a part, the moment where it began
--   h: interval, burst, how many times, the times
--   r: moved, the moment of the charge, reach
-- where `need` is what has to fit, `at` when it was charged, `least` what the bucket is short of
-- at least after it, `known` what it is short of as far as the asker knows, if it is not here, and
-- `known at` when that was known: what came in since is not in it.
--
-- Answers seconds and microseconds of the clock, and for each key three numbers: how long until it
-- is full (s, h: until it is free) before and after, and 1 if it was charged.

local clock = redis.call('TIME')
local second, nanos = tonumber(clock[1]), tonumber(clock[2]) * 1000
local place = 1

local function number()
  place = place + 1
  return tonumber(ARGV[place])
end

-- How far a moment lies ahead. Exact within a hundred days.
local function ahead(s, n) return (s - second) * 1e9 + n - nanos end

local function text(n) return string.format('%.0f', n) end

-- The moment that lies so far ahead, as it is kept.
local function moment(far)
  local whole = math.floor((nanos + far) / 1e9)
  return text(second + whole) .. ' ' .. text(nanos + far - whole * 1e9)
end

-- Keeps a key of which something matters so far ahead. What is charged late is not forgotten at
-- once: others that began as long ago are still to be charged.
local function keep(key, value, far, late)
  local left = math.max(far, 0) + math.max(late or 0, 0)
  redis.call('SET', key, value, 'PX', text(math.ceil(left / 1e6) + 1000))
end

local kinds = {}

-- Somebody who asks without having been away is believed to know more for so long,
local believed = 60e9
-- if it is more than a round trip makes of it.
local doubt = 100e6
-- Nobody is away for longer.
local remembered = 86400e9

-- A bucket is one number: when it is full. Beside it is kept when it came to be here and what was
-- charged since. For who does not find it begins it from what is known there; another one may know
-- more of what was before, to which all that came since is added then, once. Who has known it only
-- since knows what was charged too.
local function one_number(b)
  local state = redis.call('GET', b.key) or ''
  local s, n, more = string.match(state, '^(%d+) (%-?%d+)(.*)$')
  local x = s and ahead(tonumber(s), tonumber(n))
  b.sum, b.since = nil, nil
  if not x then
    b.sum, b.since = 0, 0
    if b.known > 0 then x = b.known end
  else
    local sum, began_s, began_n = string.match(more, '^ (%d+) (%d+) (%d+)$')
    local since = sum and ahead(tonumber(began_s), tonumber(began_n))
    if since and since > -remembered then b.sum, b.since = tonumber(sum), since end
  end
  if s and b.since and b.known > 0 then
    if b.known_at < b.since then
      x = math.max(x, b.plus(b.known, b.sum))
    elseif b.since > -believed and b.known - x > doubt then
      x = b.known
    end
  end
  b.x = x or -math.huge
  b.before = math.max(b.x, 0)
end

-- Keeps it, charged so much more.
local function keep_one(b, x, more, late)
  local value = moment(x)
  if b.since then
    value = value .. ' ' .. text(math.max(b.sum + more, 0)) .. ' ' .. moment(b.since)
  end
  keep(b.key, value, x, late)
end

function kinds.d()
  local b = { need = number(), cost = number(), at = number(), least = number() }
  b.known, b.known_at, b.depth, b.reach = number(), number(), number(), number()
  function b.plus(x, sum)
    if b.reach < 0 then return x + sum end
    return math.max(math.min(x + sum, b.reach), x)
  end
  function b.look()
    one_number(b)
    b.wait = math.max(b.before + b.need - b.depth, 0)
  end
  function b.charge()
    local base = math.max(b.x, b.at)
    local x = math.max(base + b.cost, b.least)
    if b.reach >= 0 then x = math.max(math.min(x, b.reach), base) end
    if b.cost > 0 then keep_one(b, x, x - base, -b.at) end
    b.after = b.cost > 0 and math.max(x, 0) or b.before
  end
  return b
end

function kinds.r()
  local b = { moved = number() }
  local elapsed = -ahead(number(), number())
  local reach = number()
  function b.look()
    b.known, b.known_at, b.wait = 0, 0, 0
    one_number(b)
  end
  function b.charge()
    b.after = b.before
    local open = b.moved - elapsed
    if open <= 0 or b.x <= 0 or reach >= 0 and b.x >= reach - elapsed then return end
    local x = b.x - open
    keep_one(b, x, -open)
    b.after = math.max(x, 0)
  end
  return b
end

function kinds.g()
  local b = { need = number(), cost = number(), at = number(), least = number() }
  b.known, b.known_at = number(), number()
  local tokens, period, burst = number(), number(), number()
  local origin = ahead(number(), number())
  -- Steps since the origin, and when one of them is.
  local function steps(far)
    local whole = math.floor((far - origin) / period)
    local rest = far - origin - whole * period
    return whole * tokens + math.floor(rest * tokens / period)
  end
  local function step_at(step)
    local whole = math.floor(step / tokens)
    local rest = step - whole * tokens
    return origin + whole * period + math.ceil(rest * period / tokens)
  end
  function b.plus(x, sum) return step_at(steps(x) + sum) end
  function b.look()
    one_number(b)
    local missing = 0
    if b.x > 0 then missing = math.max(steps(b.x) - steps(0), 0) end
    local short = missing + b.need - burst
    b.wait = short > 0 and math.max(step_at(steps(0) + short), 0) or 0
  end
  function b.charge()
    b.after = b.before
    if b.cost == 0 then return end
    local x = math.max(step_at(steps(math.max(b.x, b.at)) + b.cost), b.least)
    keep_one(b, x, b.cost, -b.at)
    b.after = math.max(x, 0)
  end
  return b
end

-- Sums of parts by their numbers, the number of the newest, and how far ahead the block ends.
function kinds.s()
  local b = { cost = number(), at = number() }
  local round, window, max = number(), number(), number()
  local part, parts, of = number(), number(), number()
  local origin = ahead(number(), number())
  local function part_of(far) return of + math.floor((far - origin) / part) end
  local function left(ends)
    return ends > 2 * window and 0 or math.max(math.min(ends, window), 0)
  end
  function b.look()
    b.newest, b.ends, b.sums = 0, 0, {}
    local state = redis.call('GET', b.key)
    local s, n, newest, sums = string.match(state or '', '^(%d+) (%-?%d+) (%d+)(.*)$')
    if s then
      b.ends, b.newest = ahead(tonumber(s), tonumber(n)), tonumber(newest)
      for p, sum in string.gmatch(sums, ' (%d+):(%d+)') do b.sums[tonumber(p)] = tonumber(sum) end
    end
    b.wait = left(b.ends)
    b.before = b.wait
  end
  function b.charge()
    b.after = b.before
    local cost = b.cost
    if round > 0 then cost = math.floor((cost + math.floor(round / 2)) / round) * round end
    if cost <= 0 then return end
    local now = part_of(0)
    -- What lies further ahead was written by a clock that was set back since.
    if b.newest <= now + parts then now = math.max(now, b.newest) end
    local kept, sum = {}, 0
    local to = math.min(part_of(b.at), now)
    if to > now - parts then b.sums[to] = (b.sums[to] or 0) + cost end
    for p, one in pairs(b.sums) do
      if p > now - parts and p <= now then
        kept[#kept + 1] = ' ' .. text(p) .. ':' .. text(one)
        sum = sum + one
      end
    end
    if b.wait == 0 then b.ends = sum >= max and window or 0 end
    b.after = left(b.ends)
    keep(b.key, moment(b.ends) .. ' ' .. text(now) .. table.concat(kept), 2 * window + part)
  end
  return b
end

-- The time until which requests are delayed, and those of the last `burst` of them.
function kinds.h()
  local b, times = {}, {}
  local interval, burst, count = number(), number(), number()
  for index = 1, count do times[index] = number() end
  local window = burst * interval
  function b.look()
    b.until_, b.times = 0, {}
    local state = redis.call('GET', b.key)
    local s, rest = string.match(state or '', '^(%d+)(.*)$')
    if s then
      for n in string.gmatch(rest, ' (%-?%d+)') do
        b.times[#b.times + 1] = ahead(tonumber(s), tonumber(n))
      end
      b.until_ = table.remove(b.times, 1) or 0
    end
    b.before, b.wait = math.max(b.until_, 0), 0
  end
  local function record(at)
    local recent = {}
    for _, t in ipairs(b.times) do
      if -t <= window then recent[#recent + 1] = t end
    end
    if -at <= window then
      if #recent < burst then
        recent[#recent + 1] = at
      else
        local oldest = 1
        for index, t in ipairs(recent) do
          if t < recent[oldest] then oldest = index end
        end
        if recent[oldest] < at then recent[oldest] = at end
      end
    end
    b.times = recent
    if #recent >= burst then
      local newest = 0
      for _, t in ipairs(recent) do newest = math.max(newest, t) end
      b.until_ = math.max(b.until_, newest + interval)
    end
  end
  function b.charge()
    for _, at in ipairs(times) do record(at) end
    b.after = math.max(b.until_, 0)
    local far, kept = b.until_, { text(second), text(b.until_ + nanos) }
    for _, t in ipairs(b.times) do
      kept[#kept + 1] = text(t + nanos)
      far = math.max(far, t + window)
    end
    if far > 0 then keep(b.key, table.concat(kept, ' '), far) end
  end
  return b
end

local function refused(b) return b.patience >= 0 and b.wait > b.patience end

local all, stopped = {}, false
for index = 1, #KEYS do
  place = place + 1
  local kind, patience = ARGV[place], number()
  local b = kinds[kind]()
  b.key, b.patience = KEYS[index], patience
  all[index] = b
end
if ARGV[1] == '1' then
  for _, b in ipairs(all) do
    b.look()
    stopped = stopped or refused(b)
  end
end
local answer = { second, nanos / 1000 }
for _, b in ipairs(all) do
  b.look()
  b.after = b.before
  local charged = not (stopped or refused(b))
  if charged then b.charge() end
  local place = #answer
  answer[place + 1], answer[place + 2], answer[place + 3] = b.before, b.after, charged and 1 or 0
end
return answer
