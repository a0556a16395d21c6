-- What new work is checked against, and how fast a pool drains. Of each pool the hash `load:<pool>`:
--   n         completions, counted by `complete` and `complete_many`
--   s:<lane>  a sample of the lane, packed: {at, bytes, held, used, most, rate, since, from, behind}
--     at      when it was taken, ms                    bytes  of the lane's queue, estimated
--     held    messages handed out and not ended        used   memory of the server, bytes
--     most    memory up to which work is admitted, 0 = the server has no limit
--     rate    completions in 1,000 s, -1 = not measured yet
--     since, from, behind   when the rate was measured, n and the waiting messages then
--   g:<lane>  bytes of large messages accepted since the sample
--   f, b      what retries are measured by, see `_retries`
--   d:, db:, a:, ab: <lane>   what waits beside the queue, see `_beside`
-- A sample costs 20 us and is taken at most every SAMPLE_MS, or once GROWTH bytes came in since.

local SAMPLE_MS = 250
local GROWTH = 4194304
local LARGE = 1024
local MEMORY_SHARE = 0.8
local RATE_MS = 1000
local SHORTEST_RETRY, FIRST_RETRY, LONGEST_RETRY = 100, 1000, 60000
local AT, BYTES, HELD, USED, MOST, RATE, SINCE, FROM, BEHIND = 1, 2, 3, 4, 5, 6, 7, 8, 9

-- Measures how many completions the pool makes in 1,000 s. While nothing waited it did what came in,
-- which says only that it is no slower.
local function measure(s, n, waiting, now)
  if now - s[SINCE] < RATE_MS then return end
  local measured = math.floor((n - s[FROM]) * 1000000 / (now - s[SINCE]))
  if waiting > 0 and s[BEHIND] > 0 then
    s[RATE] = s[RATE] > 0 and math.floor((s[RATE] + measured) / 2) or measured
  elseif measured > math.max(s[RATE], 0) then
    s[RATE] = measured
  end
  s[SINCE], s[FROM], s[BEHIND] = now, n, waiting
end

-- Takes a sample; `last` is the one before, if there is one.
local function sample(P, pool, lane, last, depth, now)
  local load, stream = P .. 'load:' .. pool, P .. 's:' .. pool .. ':' .. lane
  local n = tonumber(redis.call('HGET', load, 'n') or '0')
  local s = last and now >= last[SINCE] and last or { now, 0, 0, 0, 0, -1, now, n, 0 }
  s[AT], s[HELD] = now, 0
  s[BYTES] = redis.call('MEMORY', 'USAGE', stream, 'SAMPLES', 100) or 0
  if s[BYTES] > 0 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      for k = 1, #group, 2 do
        if group[k] == 'pending' then s[HELD] = s[HELD] + group[k + 1] end
      end
    end
  end
  local memory = redis.call('INFO', 'memory')
  s[USED] = tonumber(string.match(memory, 'used_memory:(%d+)') or '0')
  s[MOST] = math.floor(tonumber(string.match(memory, 'maxmemory:(%d+)') or '0') * MEMORY_SHARE)
  measure(s, n, math.max(0, depth - s[HELD]), now)
  redis.call('HSET', load, 's:' .. lane, cmsgpack.pack(s))
  redis.call('HDEL', load, 'g:' .. lane)
  return s
end

-- Returns how full a lane was when it was looked at last, what has been accepted since, and what waits
-- beside it: HMGET's answer, in which delayed messages and their bytes are 3 and 4, those put aside 5, 6.
local function load_of(P, pool, lane, depth, now)
  local found = redis.call('HMGET', P .. 'load:' .. pool, 's:' .. lane, 'g:' .. lane,
    'd:' .. lane, 'db:' .. lane, 'a:' .. lane, 'ab:' .. lane)
  local s = found[1] and cmsgpack.unpack(found[1])
  local grown = tonumber(found[2] or '0')
  if s and now - s[AT] < SAMPLE_MS and now >= s[AT] and grown < GROWTH then return s, grown, found end
  return sample(P, pool, lane, s, depth, now), 0, found
end

-- In how many ms `count` of what waits beside a queue can have come back: not before so many of all
-- that is delayed are due, and where retries wait for tokens, not before theirs came.
local function comes_back(P, pool, count, now)
  local wait = retry_wait(P, pool, count)
  if wait > 0 then return wait end
  local place = math.min(count, redis.call('ZCARD', P .. 'delayed')) - 1
  local last = redis.call('ZRANGE', P .. 'delayed', place, place, 'WITHSCORES')
  return last[2] and math.ceil(tonumber(last[2])) - now or 0
end

-- When to come back: a tenth of what is too much has gone by then. What is in the queue goes as fast as
-- the pool drains, what waits `aside` not before it comes back.
local function retry_after(P, pool, rate, depth, aside, now)
  local tenth, ms = math.ceil((depth + aside) / 10), FIRST_RETRY
  if rate == 0 then return LONGEST_RETRY end
  if rate > 0 then ms = math.ceil(tenth * 1000000 / rate) end
  if tenth > depth then ms = math.max(ms, comes_back(P, pool, tenth - depth, now)) end
  return math.max(SHORTEST_RETRY, math.min(LONGEST_RETRY, ms))
end

-- There is room for delayed work once the first that is delayed is due.
local function full_of_delayed(P, reason, there, limit, now)
  local first = redis.call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')
  local ms = first[2] and math.ceil(tonumber(first[2])) - now or 0
  return { 'full', reason, there, limit, math.max(SHORTEST_RETRY, math.min(LONGEST_RETRY, ms)) }
end

-- Whether the first message of the effects from ARGV[i] on is to wait for its time.
local function is_delayed(P, argv, i, now)
  if argv[i] == 'spend' then i = i + 2 end
  local due = argv[i] == 'put' and argv[i + 3] or '0'
  if argv[i] == 'open' then
    local first = redis.call('LINDEX', P .. 'stage:' .. argv[i + 1], 0)
    due = first and unpack_message(first).due or 0
  end
  due = tonumber(due)
  return due < 0 or due > now
end

-- Checks new work against the caps of its lane: at most `length` messages and `bytes` are in it or were,
-- and come back to it; and as many are delayed by those who sent them, who fill their own room only.
-- `work`: depth, messages in the queue; more, messages that come with the first; delayed; unfinished,
-- runs of its tenant, of `per_tenant` at most, 0 = any number.
-- Returns nil, fill in thousandths, waiting, rate | the answer that refuses.
local function admit(P, pool, lane, work, length, bytes, now)
  local depth = work.depth
  local s, grown, beside = load_of(P, pool, lane, depth, now)
  local waits, aside = tonumber(beside[5] or '0'), tonumber(beside[6] or '0')
  local there = depth + waits
  local later = tonumber(beside[4] or '0')
  local function full(reason, found, limit, queued, beside_them)
    return { 'full', reason, found, limit, retry_after(P, pool, s[RATE], queued, beside_them, now) }
  end
  if work.delayed then
    there = tonumber(beside[3] or '0')
    if there + work.more >= length then
      return full_of_delayed(P, 'delayed', there + work.more, length, now)
    end
    if later >= bytes then return full_of_delayed(P, 'delayed bytes', later, bytes, now) end
  elseif there + work.more >= length then
    return full('length', there + work.more, length, depth, waits)
  end
  if work.per_tenant > 0 and work.unfinished >= work.per_tenant then
    return full('tenant', work.unfinished, work.per_tenant, work.unfinished, 0)
  end
  -- An old sample must not refuse what there is room for by now.
  local over = s[BYTES] + grown + aside >= bytes or (s[MOST] > 0 and s[USED] + grown >= s[MOST])
  if over and s[AT] < now then s, grown = sample(P, pool, lane, s, depth, now), 0 end
  local held = work.delayed and later or s[BYTES] + grown + aside
  if held >= bytes then return full('bytes', held, bytes, depth, waits) end
  local fill = math.max((there + work.more) / length, held / bytes)
  if s[MOST] > 0 then
    if s[USED] + grown >= s[MOST] then return full('memory', s[USED] + grown, s[MOST], depth, waits) end
    fill = math.max(fill, (s[USED] + grown) / s[MOST])
  end
  if work.per_tenant > 0 then fill = math.max(fill, work.unfinished / work.per_tenant) end
  return nil, math.floor(fill * 1000), math.max(0, depth - s[HELD]), s[RATE]
end

-- Notes `bytes` of accepted work until the next sample sees them; small ones are not worth it.
local function grow(P, pool, lane, bytes)
  if bytes >= LARGE then redis.call('HINCRBY', P .. 'load:' .. pool, 'g:' .. lane, bytes) end
end

-- Counts what ended: `ended` says how many deliveries of which stream.
local function drained(P, ended)
  for stream, count in pairs(ended) do
    local pool = string.match(stream, '^[sr]:(.-):', #P + 1)
    if pool then redis.call('HINCRBY', P .. 'load:' .. pool, 'n', count) end
  end
end
