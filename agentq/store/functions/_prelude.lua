-- What the functions share: the clock, the queues, and how a message gets into them.
--
-- A message is {pool, lane, due_ms, id, run, join, headers, body}:
--   due_ms   0 = now, -n = in n ms, else an instant    run    run id or ""
--   id       task id                                   join   "<join>|<index>" or ""
-- In a stream entry its fields are i, r, j, h, b, plus
--   a  attempts charged so far (hand-overs that ended with the worker's death)
--   n  retries: hand-overs that ended with an exception
--   t  when it was first enqueued, ms (returned entries; else the entry's id says it)
--   u  since when it is parked because no worker that saw it has its code, ms
--   s  how often it was in the hands of a process that died or hung while it was not alone there:
--      not charged, but from the first time on it is a suspect, which workers run alone

local GROUP = 'w'
local PIECE = 1048576 -- bytes of messages after which a call ends, so that large ones hold nobody up
local FEW = 4         -- messages read at first, as what they weigh is known only then: 256 KiB each at most

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- How many of at most `most` messages to read next, where those read last had `last` bytes together
-- (nil: none were). More would save nothing: a read costs 2 us.
local function few(most, last)
  local count = FEW
  if last then count = last > PIECE / 16 and 1 or 2 * FEW end
  return math.min(count, most)
end

local function make_queue(P, key, lane)
  redis.call('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM')
  redis.call('SADD', P .. 'lanes', lane)
end

local function ensure(P, kind, lane)
  local key = P .. kind .. lane
  if redis.call('EXISTS', key) == 0 then make_queue(P, key, lane) end
  return key
end

-- Wakes up to `count` workers of a pool that have room and hold a lease.
local function wake(P, pool, count, now)
  local idle = P .. 'idle:' .. pool
  while count > 0 do
    local found = redis.call('ZPOPMIN', idle)
    local worker = found[1]
    if not worker then return end
    local lease = redis.call('ZSCORE', P .. 'workers', worker)
    if lease and tonumber(lease) >= now then
      local key = P .. 'wake:' .. worker
      redis.call('RPUSH', key, '1')
      redis.call('PEXPIRE', key, 60000)
      count = count - 1
    end
  end
end

local function add(P, kind, m, attempts, retries, born)
  local key = ensure(P, kind, m.pool .. ':' .. m.lane)
  if m.u or m.s then
    redis.call('XADD', key, '*', 'i', m.id, 'r', m.run, 'j', m.join, 'h', m.h, 'b', m.b,
      'a', attempts, 'n', retries, 't', born, 'u', m.u or 0, 's', m.s or 0)
  elseif attempts == 0 and retries == 0 and born == 0 then
    redis.call('XADD', key, '*', 'i', m.id, 'r', m.run, 'j', m.join, 'h', m.h, 'b', m.b)
  else
    redis.call('XADD', key, '*', 'i', m.id, 'r', m.run, 'j', m.join, 'h', m.h, 'b', m.b,
      'a', attempts, 'n', retries, 't', born)
  end
end

-- Reads a message that starts at ARGV[i]; returns it and the next index.
local function message_at(argv, i)
  return { pool = argv[i], lane = argv[i + 1], due = tonumber(argv[i + 2]), id = argv[i + 3],
    run = argv[i + 4], join = argv[i + 5], h = argv[i + 6], b = argv[i + 7] }, i + 8
end

-- Reads an entry; whatever a stranger wrote, every field is there and has its type.
local function fields_of(entry)
  local f = { i = '', r = '', j = '', h = '', b = '' }
  local list = entry[2]
  for k = 1, #list, 2 do f[list[k]] = list[k + 1] end
  f.a, f.n = tonumber(f.a) or 0, tonumber(f.n) or 0
  f.t = tonumber(f.t) or tonumber(string.match(entry[1], '^(%d+)'))
  f.u, f.s = tonumber(f.u) or 0, tonumber(f.s) or 0
  if not string.match(f.j, '^.+|%d+$') then f.j = '' end
  return f
end

local function pack(m)
  return cmsgpack.pack({ m.pool, m.lane, m.due, m.id, m.run, m.join, m.h, m.b })
end

local function unpack_message(bytes)
  local v = cmsgpack.unpack(bytes)
  return { pool = v[1], lane = v[2], due = v[3], id = v[4], run = v[5], join = v[6], h = v[7], b = v[8] }
end
