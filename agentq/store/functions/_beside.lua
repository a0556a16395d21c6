-- What waits beside its queue: delayed until it is due, or put aside by a pause.
--
-- Both are kept packed, by `packed` alone: {pool, lane, id, run, join, headers, body, attempts, retries,
-- born, what no worker has the code of or "", parked since, times suspected, 1 where it is a retry
-- that has to take a token (else there is no such field)}. Those put aside are lists `aside:<pause>`.
--
-- Delayed messages are in the hash `delayed:m` by "<id>#<retries>", their due times in the zset
-- `delayed`; that of a retry that is due and has no token, in `retries:<pool>` (`_retries`). The set
-- `delayed:r:<run>` names those of a run, whose rest is dropped when it ends (`_ended`).
--
-- Admission must know of them, so they are counted in `load:<pool>`, messages and packed bytes of a lane:
--   d:<lane>, db:<lane>   what a producer delayed
--   a:<lane>, ab:<lane>   what was in the queue and comes back: backoff, parked, put aside

local function packed(f, pool, lane)
  return cmsgpack.pack({ pool, lane, f.i, f.r, f.j, f.h, f.b, f.a, f.n, f.t, f.unknown or '', f.u, f.s,
    f.back })
end

local function unpacked(bytes)
  local v = cmsgpack.unpack(bytes)
  return { i = v[3], r = v[4], j = v[5], h = v[6], b = v[7], a = v[8], n = v[9], t = v[10],
    unknown = v[11] or '', u = v[12] or 0, s = v[13] or 0, back = v[14] }, v[1], v[2]
end

local function message_of(f, pool, lane)
  return { pool = pool, lane = lane, id = f.i, run = f.r, join = f.j, h = f.h, b = f.b,
    u = f.u and f.u > 0 and f.u or nil, s = f.s and f.s > 0 and f.s or nil }
end

-- Which count a delayed message is in.
local function kind_of(f)
  local new = not f.back and f.a == 0 and f.n == 0 and f.s == 0 and (f.unknown or '') == ''
  return new and 'd' or 'a'
end

-- Gathers in `counts` that `by` messages of so many packed bytes come or go; `write_counts` counts them.
local function tally(counts, pool, lane, kind, bytes, by)
  local fields = counts[pool] or {}
  counts[pool] = fields
  local number, size = kind .. ':' .. lane, kind .. 'b:' .. lane
  fields[number] = (fields[number] or 0) + by
  fields[size] = (fields[size] or 0) + by * bytes
end

local function write_counts(P, counts)
  for pool, fields in pairs(counts) do
    local load = P .. 'load:' .. pool
    for field, by in pairs(fields) do
      if by ~= 0 and redis.call('HINCRBY', load, field, by) <= 0 then redis.call('HDEL', load, field) end
    end
  end
end

-- Counts what is parked because nobody has its code, by name, with the time of the first.
local function count_parked(P, name, by, since)
  if redis.call('HINCRBY', P .. 'parked', name, by) <= 0 then
    redis.call('HDEL', P .. 'parked', name)
    redis.call('HDEL', P .. 'parked:t', name)
  elseif by > 0 and since < tonumber(redis.call('HGET', P .. 'parked:t', name) or since + 1) then
    redis.call('HSET', P .. 'parked:t', name, since)
  end
end

-- Forgets that a message of so many packed bytes is delayed, wherever else that is noted.
local function uncount(P, counts, member, f, pool, lane, bytes)
  if f.back then redis.call('ZREM', P .. 'retries:' .. pool, member) end
  if f.r ~= '' then redis.call('SREM', P .. 'delayed:r:' .. f.r, member) end
  if f.unknown ~= '' then count_parked(P, f.unknown, -1) end
  tally(counts, pool, lane, kind_of(f), bytes, -1)
end

-- Takes delayed messages out of their table, as {fields, pool, lane}, in order, until it has read
-- `limit` bytes; what is there no more is left out. `stays(member, fields, pool)`: true of what is only
-- to have no due time any more. Returns also how many of the members it has done with, and their bytes.
local function undelay(P, members, limit, stays)
  local found, gone, counts, size, done = {}, {}, {}, 0, 0
  local last = limit < PIECE and PIECE or nil -- where few bytes are left, one at first
  while done < #members and size < limit do
    local to = done + few(#members - done, last)
    last = 0
    for k, bytes in ipairs(redis.call('HMGET', P .. 'delayed:m', unpack(members, done + 1, to))) do
      if bytes then
        local member, f, pool, lane = members[done + k], unpacked(bytes)
        if not (stays and stays(member, f, pool)) then
          uncount(P, counts, member, f, pool, lane, #bytes)
          found[#found + 1], gone[#gone + 1] = { f, pool, lane }, member
        end
        last = last + #bytes
      end
    end
    done, size = to, size + last
  end
  if done > 0 then redis.call('ZREM', P .. 'delayed', unpack(members, 1, done)) end
  if gone[1] then redis.call('HDEL', P .. 'delayed:m', unpack(gone)) end
  write_counts(P, counts)
  return found, done, size
end

-- Takes one out that was read before; returns whether it was still there.
local function take_delayed(P, member, f, pool, lane, bytes)
  local counts = {}
  if redis.call('HDEL', P .. 'delayed:m', member) == 0 then return false end
  redis.call('ZREM', P .. 'delayed', member)
  uncount(P, counts, member, f, pool, lane, bytes)
  write_counts(P, counts)
  return true
end

-- Delays a message, with the fields of an entry; one of that id and retry takes the place of the other.
local function delay(P, f, pool, lane, due)
  local member, bytes, counts = f.i .. '#' .. f.n, packed(f, pool, lane), {}
  if redis.call('HEXISTS', P .. 'delayed:m', member) == 1 then undelay(P, { member }, PIECE) end
  redis.call('ZADD', P .. 'delayed', due, member)
  redis.call('HSET', P .. 'delayed:m', member, bytes)
  if f.r ~= '' then
    redis.call('SADD', P .. 'delayed:r:' .. f.r, member)
    if redis.call('HGET', P .. 'run:' .. f.r, 'state') ~= 'running' then redis.call('SADD', P .. 'ended', f.r) end
  end
  if (f.unknown or '') ~= '' then count_parked(P, f.unknown, 1, f.u) end
  tally(counts, pool, lane, kind_of(f), #bytes, 1)
  write_counts(P, counts)
end

-- Puts a message where it belongs and notes which pool to wake.
local function put(P, m, now, woken)
  if m.due < 0 then m.due = now - m.due end
  if m.due > now or (m.back and not may_retry(P, m.pool, now)) then
    delay(P, { i = m.id, r = m.run, j = m.join, h = m.h, b = m.b, a = 0, n = 0, t = now, u = 0, s = 0,
      back = m.back }, m.pool, m.lane, math.max(m.due, now))
  else
    add(P, 's:', m, 0, 0, 0)
    woken[m.pool] = (woken[m.pool] or 0) + 1
  end
end

-- Puts aside what a pause stopped.
local function put_aside(P, pause, f, pool, lane)
  local bytes, counts = packed(f, pool, lane), {}
  redis.call('RPUSH', P .. 'aside:' .. pause, bytes)
  tally(counts, pool, lane, 'a', #bytes, 1)
  write_counts(P, counts)
end

-- Takes one message out of a list of those put aside.
local function take_aside(P, list, bytes, pool, lane)
  local counts = {}
  redis.call('LREM', list, 1, bytes)
  tally(counts, pool, lane, 'a', #bytes, -1)
  write_counts(P, counts)
end

-- Lifts a pause piece by piece: moves at most `most` messages of its list back, in order, until with
-- `size` bytes moved before it is PIECE of them, and forgets the pause with the last. Returns how many it
-- moved, how many are left, and the bytes.
local function bring_back(P, pause, most, size, woken)
  local list, counts, moved = P .. 'aside:' .. pause, {}, 0
  while moved < most and size < PIECE do
    local bytes = redis.call('LPOP', list)
    if not bytes then break end
    local f, pool, lane = unpacked(bytes)
    add(P, 'r:', message_of(f, pool, lane), f.a, f.n, f.t)
    tally(counts, pool, lane, 'a', #bytes, -1)
    woken[pool] = (woken[pool] or 0) + 1
    moved, size = moved + 1, size + #bytes
  end
  write_counts(P, counts)
  local left = redis.call('LLEN', list)
  if left == 0 then redis.call('HDEL', P .. 'paused', pause) end
  return moved, left, size
end
