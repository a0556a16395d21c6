#!lua name=aq1
-- revision 3
local REVISION, DIGEST = 3, 'a16b5ef6ac9d7eb5'
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

-- How many retries a pool starts, so that what it depends on and fails is not asked ever more often.
--
-- A retry takes a token when it starts. Each attempt of the pool brings `retry.budget` percent of one,
-- and where that is less than `retry.per_second`, time brings the rest; tokens fade within WINDOW.
-- So a quiet pool has ten seconds' worth of them: its first retries are never held. Finagle's budget,
-- and Linkerd's.
--
-- A retry that is due and has no token waits for one, behind those that wait already; `promote` starts
-- the oldest as tokens come, so their rate is what the bucket says by then. The field's budgets (gRPC,
-- Finagle, Envoy) refuse it, since there a caller is on the line who can do without; here the work
-- was accepted and lies in Redis, where waiting costs nobody anything, and failing it would make
-- lost runs of a dependency's bad minute. A run's deadline bounds the wait.
--
-- One bucket a pool, here and not in each worker: a thousand buckets would be a thousand minimums,
-- and a worker that is killed and comes back would begin with a full one. It costs nothing where
-- nothing is retried, since completions are counted anyway. The keys:
--   retries          the two settings, as `promote` notes them
--   retries:<pool>   what waits for a token, score = when it was due; it is delayed, see `_beside`
--   tokens           pools where retries wait, score = when to look for tokens, ms
-- and of `load:<pool>` the fields
--   f  attempts that ended in a retry by `fail` (what ends by `complete` is in n)
--   b  the bucket, packed: {at, tokens, attempts a ms, n + f as last seen}

local WINDOW = 10000
local LATELY = 2000 -- ms over which attempts are averaged, so that time brings tokens again soon after a storm
local HANDFUL_MS = 250 -- between two looks at a bucket: tokens are given out by the handful
local LONGEST_MS = 2000 -- no token is further off, as time brings one a second; if it is, the clock went back
local BUDGET, PER_SECOND = 20, 10

local function retry_settings(P)
  local text = redis.call('GET', P .. 'retries') or ''
  local percent, least = string.match(text, '^(%d+) (%d+)$')
  return (tonumber(percent) or BUDGET) / 100, (tonumber(least) or PER_SECOND) / 1000
end

-- Takes as many tokens as there are, `most` at most, or gives some back (`most` is below 0); returns how
-- many it took, and when to look for more.
local function take_tokens(P, pool, most, now)
  local load = P .. 'load:' .. pool
  local share, least = retry_settings(P)
  local found = redis.call('HMGET', load, 'n', 'f', 'b')
  local ended = tonumber(found[1] or '0') + tonumber(found[2] or '0')
  local b = found[3] and cmsgpack.unpack(found[3]) or { now, least * WINDOW, 0, ended }
  local passed, made = math.max(0, now - b[1]), math.max(0, ended - b[4])
  local attempts = b[3] * (1 - math.min(1, passed / LATELY)) + made / math.max(passed, LATELY)
  -- After longer than WINDOW: of what was made since, as much as in one. The last token does not fade.
  local tokens = b[2] - math.max(0, b[2] - 1) * math.min(1, passed / WINDOW)
    + share * made * (passed > WINDOW and WINDOW / passed or 1)
    + math.max(0, least - share * attempts) * math.min(passed, WINDOW)
  local taken = math.min(most, math.floor(tokens))
  tokens = tokens - taken
  redis.call('HSET', load, 'b', cmsgpack.pack({ now, tokens, attempts, ended }))
  if tokens >= 1 then return taken, now end
  return taken, now + math.max(HANDFUL_MS, math.ceil((1 - tokens) / math.max(least, share * attempts)) + 1)
end

-- Whether a retry may start at once; takes its token.
local function may_retry(P, pool, now)
  if redis.call('EXISTS', P .. 'retries:' .. pool) == 1 then return false end
  local taken = take_tokens(P, pool, 1, now)
  return taken == 1
end

local function wait_for_token(P, pool, member, due, now)
  redis.call('ZADD', P .. 'retries:' .. pool, due, member)
  redis.call('ZADD', P .. 'tokens', 'NX', now, pool)
end

-- Returns in how many ms the first `count` of the retries that wait will have started, as the bucket
-- was last seen; 0: none waits.
local function retry_wait(P, pool, count)
  local waiting = redis.call('ZCARD', P .. 'retries:' .. pool)
  if waiting == 0 then return 0 end
  local share, least = retry_settings(P)
  local b = redis.call('HGET', P .. 'load:' .. pool, 'b')
  local attempts = b and cmsgpack.unpack(b)[3] or 0
  return math.ceil(math.min(count, waiting) / math.max(least, share * attempts))
end

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

-- When leases are given a new term although nobody renewed them.

-- Gives a lease one full term from now on.
local function new_term(P, worker, now)
  local lease = tonumber(redis.call('HGET', P .. 'worker:' .. worker, 'lease') or '15000')
  redis.call('ZADD', P .. 'workers', now + lease, worker)
end

-- Gives one to every lease: nobody could renew for a while.
local function new_terms(P, now)
  for _, worker in ipairs(redis.call('ZRANGE', P .. 'workers', 0, -1)) do new_term(P, worker, now) end
end

-- Whether this server is another than the one that was here before: a failover, or a restart.
-- Asked where it matters and seldom: before a lease is taken or reaped. Cost: 20 us.
local function server_changed(P)
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
  if not run then return false end -- its rights forbid INFO
  local before = redis.call('GET', P .. 'reap:server')
  if before == run then return false end
  redis.call('SET', P .. 'reap:server', run)
  return before and true or false
end

-- What a run and a Celery result show to those who wait for them.

local EVENTS_KEPT = 20000

local function event(P, run, kind, data)
  redis.call('XADD', P .. 'run:' .. run .. ':ev', 'MAXLEN', '~', EVENTS_KEPT, '*', 'e', kind, 'd', data)
end

local COUNTED = 5000 -- fields of `counts`; of names beyond them nothing is counted

-- Counts what metrics are asked for: once a run, or for what is rare. A field is "<kind>:<name>|<what>".
local function count(P, field)
  local key = P .. 'counts'
  if redis.call('HINCRBY', key, field, 1) == 1 and redis.call('HLEN', key) > COUNTED then
    redis.call('HDEL', key, field)
  end
end

-- Reads what a run's end and a completion ask of it, once for both: {state, deadline, tenant, budget, record}.
local function read_run(P, run)
  local record = redis.call('HMGET', P .. 'run:' .. run, 'state', 'deadline', 'tenant', 'budget', 'record')
  record.run = run
  return record
end

-- Ends a run once: the first end stands. `kind`, `last`: the event of the step that ended it, kept
-- in one entry with the end (field x), since both come with each run's last step. `record`: of some
-- run, as `read_run` gave it in this call.
local function end_run(P, run, state, data, keep, now, kind, last, record)
  local key = P .. 'run:' .. run
  if not record or record.run ~= run then record = read_run(P, run) end
  if record[1] ~= 'running' then return false end
  record[1] = state
  if record[3] and redis.call('HINCRBY', P .. 'tenants', record[3], -1) <= 0 then
    redis.call('HDEL', P .. 'tenants', record[3])
  end
  redis.call('HSET', key, 'state', state, 'ended', now, 'result', data)
  local flow = string.match(record[5] or '', '^{"flow":"([^"\\]+)"')
  if flow then count(P, 'run:' .. flow .. '|' .. state) end
  if record[2] ~= '0' then redis.call('ZREM', P .. 'due', run) end
  if redis.call('EXISTS', P .. 'delayed:r:' .. run, key .. ':joins') > 0 then redis.call('SADD', P .. 'ended', run) end
  if kind then
    redis.call('XADD', key .. ':ev', '*', 'e', kind, 'd', last, 'x', '"' .. state .. '"')
  else
    event(P, run, 'end', '"' .. state .. '"')
  end
  redis.call('PEXPIRE', key, keep)
  redis.call('PEXPIRE', key .. ':ev', keep)
  return true
end

local function meta(P, id, ttl, document)
  local key = P .. 'celery-task-meta-' .. id
  redis.call('SET', key, document, 'PX', ttl)
  redis.call('PUBLISH', key, document)
end

-- Fan-ins, and the members of large groups that wait for a place in their lane.

local STAGE_TTL = 600000
local SPILLED = 200 -- members of an opened group, at most, that a call takes into their lane

-- In `woken`, beside the pools by name: how many more members each fan-in may queue. They are queued
-- once, at the end of a call, which may end members of many fan-ins.
local MEMBERS = 1

local function release(join, count, woken)
  local more = woken[MEMBERS] or {}
  woken[MEMBERS] = more
  more[join] = (more[join] or 0) + count
end

-- Queues members from the head of a list: `count` of them, or `limit` bytes. Returns how many, and the bytes.
local function queue_from(P, list, count, limit, now, woken)
  local queued, size, last = 0, 0, nil
  while queued < count and size < limit do
    local members = redis.call('LPOP', list, few(count - queued, last))
    if not members then break end
    last = 0
    for _, bytes in ipairs(members) do
      put(P, unpack_message(bytes), now, woken)
      last = last + #bytes
    end
    queued, size = queued + #members, size + last
  end
  return queued, size
end

-- Queues what `release` gathered, PIECE bytes of it, and of each fan-in one at least: with none under way
-- it would stand still. The others are owed (field `owed`), and come with the next outcomes.
local function queue_members(P, more, now, woken)
  local size = 0
  for join, count in pairs(more) do
    local key, most, limit = P .. 'join:' .. join, count, PIECE - size
    if limit <= 0 then most, limit = 1, 1 end
    local queued, bytes = queue_from(P, key .. ':wait', most, limit, now, woken)
    size = size + bytes
    if queued < count and bytes >= limit then redis.call('HINCRBY', key, 'owed', count - queued) end
  end
end

-- Ends a call: queues what fan-ins may queue, and wakes workers of the pools that have new work.
local function wake_all(P, woken, now)
  local more = woken[MEMBERS]
  woken[MEMBERS] = nil
  if more then queue_members(P, more, now, woken) end
  for pool, count in pairs(woken) do wake(P, pool, math.min(count, 16), now) end
end

local function finish_join(P, join, now, woken)
  local bodies = redis.call('HGET', P .. 'join:' .. join, 'body')
  for _, bytes in ipairs(cmsgpack.unpack(bodies)) do put(P, unpack_message(bytes), now, woken) end
  redis.call('HSET', P .. 'join:' .. join, 'state', 'done')
  redis.call('UNLINK', P .. 'join:' .. join .. ':wait')
end

-- Drops a fan-in that nobody waits for any more.
local function forget(P, join)
  local key = P .. 'join:' .. join
  local run = redis.call('HGET', key, 'run')
  if run and run ~= '' then redis.call('SREM', P .. 'run:' .. run .. ':joins', join) end
  redis.call('UNLINK', key, key .. ':res', key .. ':wait')
end

-- Opens a fan-in; a join of that id that exists already stays as it is. Returns the next index, and
-- bytes and members to charge; what the run's budget does not allow is charged and not opened.
local function open_join(P, argv, i, now, woken, fits)
  local join, width, at_once = argv[i], tonumber(argv[i + 1]), tonumber(argv[i + 2])
  local ttl, run, bodies, members = tonumber(argv[i + 3]), argv[i + 4], tonumber(argv[i + 5]), argv[i + 6]
  i = i + 7
  local key = P .. 'join:' .. join
  local fresh = redis.call('EXISTS', key) == 0
  local packed = {}
  local size, group = string.match(members, '^staged:(%d+):(.+)$')
  local bytes = tonumber(size or '0')
  for n = 1, bodies do
    local m
    m, i = message_at(argv, i)
    packed[n] = pack(m)
    bytes = bytes + #m.h + #m.b
  end
  if not group then
    for k = i, i + tonumber(members) * 8 - 1, 8 do bytes = bytes + #argv[k + 6] + #argv[k + 7] end
  end
  if not fits(bytes, math.max(width, 0)) then
    if group then redis.call('UNLINK', P .. 'stage:' .. group) end
    return group and i or i + tonumber(members) * 8, bytes, math.max(width, 0)
  end
  if fresh then
    redis.call('HSET', key, 'width', width, 'more', 0, 'done', 0, 'run', run, 'state', 'open',
      'body', cmsgpack.pack(packed))
    redis.call('PEXPIRE', key, ttl)
    if run ~= '' then -- by which they are found when it ends, see `_ended`
      redis.call('SADD', P .. 'run:' .. run .. ':joins', join)
      redis.call('PEXPIRE', P .. 'run:' .. run .. ':joins', ttl)
    end
  end
  local waiting = key .. ':wait'
  if group then
    if fresh and redis.call('EXISTS', P .. 'stage:' .. group) == 1 then
      redis.call('RENAME', P .. 'stage:' .. group, waiting)
      redis.call('PEXPIRE', waiting, ttl)
      release(join, at_once, woken)
    end
  else
    for n = 1, tonumber(members) do
      local m
      m, i = message_at(argv, i)
      if fresh then
        if n <= at_once then put(P, m, now, woken) else redis.call('RPUSH', waiting, pack(m)) end
      end
    end
    if fresh and tonumber(members) > at_once then redis.call('PEXPIRE', waiting, ttl) end
  end
  if fresh and width == 0 then finish_join(P, join, now, woken) end
  return i, bytes, math.max(width, 0)
end

-- Enqueues the body once all outcomes are in.
local function settle_join(P, join, now, woken)
  local v = redis.call('HMGET', P .. 'join:' .. join, 'state', 'width', 'more', 'done')
  if v[1] ~= 'open' or tonumber(v[2]) < 0 then return end
  if tonumber(v[4]) >= tonumber(v[2]) + tonumber(v[3]) then finish_join(P, join, now, woken) end
end

-- Counts one outcome, each index once; the last one enqueues the body.
local function part(P, join, index, outcome, now, woken)
  local key = P .. 'join:' .. join
  local v = redis.call('HMGET', key, 'state', 'width', 'more', 'owed')
  if v[1] ~= 'open' or redis.call('HSETNX', key .. ':res', index, outcome) == 0 then return end
  local done = redis.call('HINCRBY', key, 'done', 1)
  if done == 1 then redis.call('PEXPIRE', key .. ':res', redis.call('PTTL', key)) end
  if v[4] then redis.call('HDEL', key, 'owed') end
  release(join, 1 + (v[4] or 0), woken)
  if tonumber(v[2]) >= 0 and done >= tonumber(v[2]) + tonumber(v[3]) then finish_join(P, join, now, woken) end
end

local function set_width(P, join, width, more, now, woken)
  local key = P .. 'join:' .. join
  if redis.call('EXISTS', key) == 0 then return end
  if more == '1' then
    redis.call('HINCRBY', key, 'more', width)
  else
    redis.call('HSET', key, 'width', width)
    settle_join(P, join, now, woken)
  end
end

-- Takes the next chunk of opened groups into their lane, until it has `limit` bytes; called by `fetch`
-- when a lane runs low. Returns the bytes.
local function spill(P, lane, now, limit)
  local open = P .. 'open:' .. lane
  local group = redis.call('LINDEX', open, 0)
  if not group then return 0 end
  local key = P .. 'group:' .. group
  local _, size = queue_from(P, key, SPILLED, limit, now, {})
  if redis.call('EXISTS', key) == 0 then redis.call('LPOP', open) end
  return size
end

-- Dead letters, and the end of what will not be tried again.
--
-- The letters are the stream `dead`. Beside it the hash `dead:n`:
--   bytes                                of all letters: reason, head and body
--   max_payload, max_number, max_bytes   the settings, as the last `promote` noted them
--   runs_keep                            runs.keep, noted likewise
--   trimmed:age, trimmed:number, trimmed:bytes   letters dropped because they were too old, many, large
--   died:<pool>:<lane>                   letters ever added; it never falls, so its growth is an alert
-- A letter that `purge` made of a step whose run went on has a field w: when that run began (field `at` of
-- its record), by which it is told from later runs of its key.

local DEAD_NUMBER, DEAD_BYTES, MAX_PAYLOAD = 10000, 67108864, 262144 -- until `promote` notes them
local SETTING = { age = 'dead.keep', number = 'dead.max_number', bytes = 'dead.max_bytes' } -- that it is for
local CUT = 65536
local TRIMMED = 20 -- letters a call trims
local REFERS = '"blob":' -- in the head of a message whose argument is in blob storage
local WEEK = 604800000 -- ms: runs.keep until `promote` notes it
local TEN_YEARS = 315360000000 -- ms; who sweeps blobs knows dead.keep, and deletes the key

local function letter_size(f) return #(f.why or '') + #f.h + #f.b end

-- Returns the name of a message's step or task; its id where its head does not say. The first "task" there
-- is it: to read a head as JSON costs 20 us.
local function step_of(f)
  return string.match(f.h, '"task":%s*"([^"\\]+)"') or f.i
end

-- Returns a failure as a run or a fan-in is told of it. Written out, since cjson would put the fields
-- in an order that differs between servers.
local function failure(kind, message, rest)
  return '{"kind":"' .. kind .. '","message":' .. cjson.encode(message) .. rest .. '}'
end

-- Takes a letter away; whoever takes one away does it here, so that the bytes are right.
local function take_letter(P, id, f)
  redis.call('XDEL', P .. 'dead', id)
  local bytes = redis.call('HINCRBY', P .. 'dead:n', 'bytes', -letter_size(f))
  if bytes < 0 then redis.call('HSET', P .. 'dead:n', 'bytes', 0) end
end

-- Whether the fan-in of a message takes its outcome no more.
local function is_counted(P, f)
  if f.j == '' then return false end
  local join, index = string.match(f.j, '^(.*)|(%d+)$')
  local open = redis.call('HGET', P .. 'join:' .. join, 'state') == 'open'
  return not open or redis.call('HEXISTS', P .. 'join:' .. join .. ':res', index) == 1
end

-- Returns when the run began that waits for a message, nil where none does.
local function waits_for(P, f)
  if f.r == '' or is_counted(P, f) then return nil end
  local record = redis.call('HMGET', P .. 'run:' .. f.r, 'state', 'at')
  return record[1] == 'running' and record[2] or nil
end

-- Drops a letter for good: the run that waits for it, since `purge` told it nothing, fails by that.
local function drop_letter(P, id, f, why)
  take_letter(P, id, f)
  if not f.w or waits_for(P, f) ~= f.w then return end
  local keep = tonumber(redis.call('HGET', P .. 'dead:n', 'runs_keep') or WEEK)
  local message = 'a step of it was purged, and its dead letter is dropped (' .. why .. ')'
  end_run(P, f.r, 'failed', failure('StepDropped', message, ',"step":' .. cjson.encode(step_of(f))), keep, now_ms())
end

-- Does `act(id, fields)` with each letter there is of ARGV and returns its answers, "gone" where there
-- is none; fewer than asked for once PIECE bytes were read.
local function with_letters(P, argv, act)
  local answers, read = {}, 0
  for k, id in ipairs(argv) do
    if read >= PIECE then break end
    local found = redis.call('XRANGE', P .. 'dead', id, id)
    local f = found[1] and fields_of(found[1])
    answers[k] = f and act(id, f) or 'gone'
    read = read + (f and letter_size(f) or 0)
  end
  return answers
end

-- Drops the oldest letter, where its id is not behind `last`, and counts it as dropped for `why`;
-- returns its bytes, nil where there is none.
local function trim(P, why, last)
  local entry = redis.call('XRANGE', P .. 'dead', '-', last, 'COUNT', 1)[1]
  if not entry then return nil end
  local f = fields_of(entry)
  drop_letter(P, entry[1], f, SETTING[why])
  redis.call('HINCRBY', P .. 'dead:n', 'trimmed:' .. why, 1)
  return letter_size(f)
end

-- Returns how many more letters there may be, and bytes of them; below 0 where there are too many.
local function letters_room(P)
  local v = redis.call('HMGET', P .. 'dead:n', 'max_number', 'max_bytes', 'bytes')
  local number = redis.call('XLEN', P .. 'dead')
  return tonumber(v[1] or DEAD_NUMBER) - number, tonumber(v[2] or DEAD_BYTES) - tonumber(v[3] or '0'), number
end

-- Drops the oldest letters where they are older than `oldest` (an id), too many or too large
-- together, a piece of them a call, in which `read` bytes were moved before; the newest stays.
local function trim_to_fit(P, read, oldest)
  for _ = 1, TRIMMED do
    if read >= PIECE then return end
    local number, bytes, there = letters_room(P)
    local dropped
    if number < 0 then
      dropped = trim(P, 'number', '+')
    elseif bytes < 0 and there > 1 then
      dropped = trim(P, 'bytes', '+')
    elseif oldest then
      dropped = trim(P, 'age', oldest)
    end
    read = read + (dropped or PIECE)
  end
end

-- Keeps a letter: whole up to broker.max_payload; of a larger one the beginning, which can not be
-- replayed (field c: how many bytes it had). The oldest make room for it. `waits`: field w, if there is one.
local function dead(P, reason, f, pool, lane, waits)
  local most = tonumber(redis.call('HGET', P .. 'dead:n', 'max_payload') or MAX_PAYLOAD)
  local h, b, cut, why = f.h, f.b, 0, string.sub(reason, 1, 1000)
  if #h > most or #b > most then
    h, b, cut = string.sub(h, 1, CUT), string.sub(b, 1, CUT), #h + #b
  end
  redis.call('XADD', P .. 'dead', '*', 'why', why, 'i', string.sub(f.i, 1, 1000), 'a', f.a, 'h', h, 'b', b,
    'n', f.n, 't', f.t, 'p', pool, 'l', lane, 'r', f.r, 'j', f.j, 'c', cut, unpack(waits and { 'w', waits } or {}))
  redis.call('HINCRBY', P .. 'dead:n', 'bytes', #why + #h + #b)
  redis.call('HINCRBY', P .. 'dead:n', 'died:' .. pool .. ':' .. lane, 1)
  if f.r ~= '' and string.find(f.h, REFERS, 1, true) then
    redis.call('SET', P .. 'blobs:kept:' .. f.r, now_ms(), 'PX', TEN_YEARS)
  end
  trim_to_fit(P, 0)
end

-- Ends what will not be tried again: its result, its fan-in or its run get an error of that kind,
-- and it is kept as a dead letter.
local function give_up(P, f, pool, lane, kind, message, keep, now, woken)
  meta(P, f.i, 86400000, '{"status":"FAILURE","result":{"exc_type":"' .. kind ..
    '","exc_message":[' .. cjson.encode(message) .. '],"exc_module":"agentq.errors"}' ..
    ',"traceback":null,"children":[],"task_id":' .. cjson.encode(f.i) .. '}')
  dead(P, message, f, pool, lane)
  if f.j ~= '' then
    local join, index = string.match(f.j, '^(.*)|(%d+)$')
    local rest = ',"step":' .. cjson.encode(step_of(f)) .. ',"attempts":' .. f.a
    part(P, join, index, failure(kind, message, rest), now, woken)
  elseif f.r ~= '' then
    end_run(P, f.r, 'failed', failure(kind, message, ',"step":' .. cjson.encode(step_of(f))), keep, now)
  end
end

-- The effects of a state change, as one function applies them.
--
-- Effects stand flat in ARGV, opcode first, and are applied in order by `apply`:
--   put    <message>                                      enqueue (or delay) one message
--   again  <message>                                      the same of a retry (`_retries`)
--   join   <join> <width> <at_once> <ttl_ms> <run> <bodies> <members> <body..> <member..>
--                                                         open a fan-in; members = "staged:.."
--                                                         takes what `stage` left under that id
--                                                         ("staged:<bytes of them>:<id>");
--                                                         width -1: told later by `width`
--   width  <join> <width> <more>                          how many outcomes a fan-in waits for, or
--                                                         with more = 1 how many beyond those
--   open   <group> <pool> <lane>                          make a staged group visible
--   part   <join> <index> <outcome>                       count one member's outcome
--   forget <join>                                         the body has read the outcomes
--   meta   <task> <ttl_ms> <document>                     store and announce a Celery result
--   event  <run> <type> <data>                            append to the run's events
--   end    <run> <state> <data> <keep_ms>                 end the run (once)
--   spend  <bytes>                                        charge what is kept outside to the run
--   dead   <reason> <task> <attempts> <headers> <body> <retries> <born_ms> <pool> <lane> <run> <join>
--                                                         keep a dead letter
-- Callers check before they call `apply`: nothing in it refuses, since Redis rolls nothing back.

local function always() return true end

-- Applies the effects in ARGV[i..n]; `woken` gathers which pools to wake (`wake_all`). `fits` says of
-- bytes and members whether the run may have them; `record`: see `end_run`. Returns an error or nil,
-- and both as they came.
local function apply(P, argv, i, n, now, woken, fits, record)
  local bytes, members = 0, 0
  while i <= n do
    local op = argv[i]
    i = i + 1
    if op == 'put' or op == 'again' then
      local m
      m, i = message_at(argv, i)
      bytes = bytes + #m.h + #m.b
      if op == 'again' then m.back = 1 end
      put(P, m, now, woken)
    elseif op == 'part' then
      bytes = bytes + #argv[i + 2]
      part(P, argv[i], argv[i + 1], argv[i + 2], now, woken)
      i = i + 3
    elseif op == 'meta' then
      meta(P, argv[i], argv[i + 1], argv[i + 2])
      i = i + 3
    elseif op == 'event' then
      local run = argv[i]
      if argv[i + 3] == 'end' and argv[i + 4] == run and i + 3 <= n then
        end_run(P, run, argv[i + 5], argv[i + 6], tonumber(argv[i + 7]), now, argv[i + 1], argv[i + 2], record)
        i = i + 8
      else
        event(P, run, argv[i + 1], argv[i + 2])
        i = i + 3
      end
    elseif op == 'join' then
      local more, wide
      i, more, wide = open_join(P, argv, i, now, woken, fits or always)
      bytes, members = bytes + more, members + wide
    elseif op == 'width' then
      set_width(P, argv[i], argv[i + 1], argv[i + 2], now, woken)
      i = i + 3
    elseif op == 'open' then
      local group, pool, lane = argv[i], argv[i + 1], argv[i + 2]
      if redis.call('EXISTS', P .. 'stage:' .. group) == 1 then
        redis.call('RENAME', P .. 'stage:' .. group, P .. 'group:' .. group)
        redis.call('PERSIST', P .. 'group:' .. group)
        redis.call('RPUSH', P .. 'open:' .. pool .. ':' .. lane, group)
        ensure(P, 's:', pool .. ':' .. lane)
        woken[pool] = (woken[pool] or 0) + 16
      end
      i = i + 3
    elseif op == 'forget' then
      forget(P, argv[i])
      i = i + 1
    elseif op == 'end' then
      end_run(P, argv[i], argv[i + 1], argv[i + 2], tonumber(argv[i + 3]), now, nil, nil, record)
      i = i + 4
    elseif op == 'dead' then
      dead(P, argv[i], { i = argv[i + 1], a = argv[i + 2], h = argv[i + 3], b = argv[i + 4], n = argv[i + 5],
        t = argv[i + 6], r = argv[i + 9], j = argv[i + 10] }, argv[i + 7], argv[i + 8])
      record = nil -- a letter that made room may have ended the run
      i = i + 11
    elseif op == 'spend' then
      bytes = bytes + tonumber(argv[i])
      i = i + 1
    else
      return redis.error_reply('AQ unknown effect ' .. tostring(op))
    end
  end
  return nil, bytes, members
end

-- A delivery in the hands of a worker: ended, read, handed back.

local HANDED_BACK = 250 -- at most, by one call: 15 us each; of large ones PIECE bytes

-- Ends a delivery: true where this worker still owned it. The entry's id is the fence, since every
-- hand-over to another worker is a new entry; an acked entry can not be acked again.
local function settle(stream, entry)
  if redis.call('XACK', stream, GROUP, entry) == 0 then return false end
  redis.call('XDEL', stream, entry)
  return true
end

-- Tells a run of an attempt that died with its process, in the shape of a step's event; the worker without
-- its start's mark. `deaths`: those charged, this one included; given up after `limit`.
local function tell_lost(P, f, pending, charge, deaths, limit, now)
  if redis.call('HGET', P .. 'run:' .. f.r, 'state') ~= 'running' then return end
  local queued = tonumber(string.match(pending[1], '^(%d+)'))
  local start = math.max(queued, now - pending[3])
  local who = ',"worker":' .. cjson.encode(string.match(pending[2], '^[^#]*'))
  event(P, f.r, 'lost', '{"step":' .. cjson.encode(step_of(f)) .. ',"task":' .. cjson.encode(f.i) .. who ..
    string.format(',"core":"-","state":"lost","attempt":%d,"start":%d,"waited":%d,"ran":%d,' ..
      '"charged":%d,"deaths":%d,"limit":%d}', f.a + f.s + f.n + 1, start, start - queued, math.max(0, now - start),
      charge, deaths, limit))
end

-- Moves what is pending of a stream, as XPENDING lists it, to where it is handed out again; dead after
-- `limit` attempts. `charge`: 1 = counts as an attempt; `suspect`: 1 = it may be what its process died of.
-- Returns its bytes.
local function give_back(P, lane, stream, pending, charge, suspect, limit, keep, now, woken)
  local entry = pending[1]
  local found = redis.call('XRANGE', stream, entry, entry)
  if not found[1] then
    redis.call('XACK', stream, GROUP, entry)
    return 0
  end
  local f = fields_of(found[1])
  local attempts, suspected = f.a + charge, f.s + suspect
  local pool, name = string.match(lane, '^(.-):(.*)$')
  if charge + suspect > 0 then count(P, 'step:' .. step_of(f) .. '|lost') end
  if f.r ~= '' and charge + suspect > 0 then tell_lost(P, f, pending, charge, attempts, limit, now) end
  -- What has no run and no join may stand in a chain or chord that only its header knows: it is
  -- handed out once more, for a worker to fail it as Celery does. Past that it is given up here.
  local most = (f.j == '' and f.r == '') and limit + 1 or limit
  if attempts >= most then
    local message = 'its worker died ' .. attempts .. ' times while it ran'
    f.a = attempts
    give_up(P, f, pool, name, 'WorkerLost', message, keep, now, woken)
  else
    add(P, 'r:', { pool = pool, lane = name, id = f.i, run = f.r, join = f.j, h = f.h, b = f.b,
      s = suspected > 0 and suspected or nil }, attempts, f.n, f.t)
    woken[pool] = (woken[pool] or 0) + 1
  end
  redis.call('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
  return #f.h + #f.b
end

-- Empties one worker's hands: its pending entries are handed out again, then its lease is gone.
-- Returns how many were, and whether there may be more: then the lease is still there.
local function hand_back(P, worker, charge, suspect, limit, keep, now)
  local woken, count, size = {}, 0, 0
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. lane
      if redis.call('EXISTS', stream) == 1 then
        local pending = redis.call('XPENDING', stream, GROUP, '-', '+', HANDED_BACK - count, worker)
        for _, entry in ipairs(pending) do
          size = size + give_back(P, lane, stream, entry, charge, suspect, limit, keep, now, woken)
          count = count + 1
          if size >= PIECE then break end
        end
        if count >= HANDED_BACK or size >= PIECE then
          wake_all(P, woken, now)
          return count, true
        end
        -- Only here: deleting a consumer drops what is pending under its name.
        redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, worker)
      end
    end
  end
  redis.call('ZREM', P .. 'workers', worker)
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    redis.call('ZREM', P .. 'idle:' .. string.match(lane, '^(.-):'), worker)
  end
  redis.call('DEL', P .. 'worker:' .. worker, P .. 'wake:' .. worker)
  wake_all(P, woken, now)
  return count, false
end

-- What is known of a message without running it, and how what waits is set aside and looked through.
--
-- A pause is a field of `paused`: "pool:<name>", "step:<task>", "flow:<name>" or "tenant:<name>";
-- its value is when it began, ms, with "-" before it once it is being lifted. What fetches meet of
-- a paused step, flow or tenant they put aside (`_beside`).

local HEAD_READ = 65536

-- Returns step, flow and tenant of a message, "" where it has none.
local function labels_of(P, f)
  local step, flow, tenant = '', '', ''
  local ok, head = pcall(cjson.decode, #f.h <= HEAD_READ and f.h or '')
  local headers = ok and type(head) == 'table' and head.headers
  if type(headers) == 'table' then
    if type(headers.task) == 'string' then step = headers.task end
    if type(headers.aq) == 'table' and type(headers.aq.flow) == 'string' then flow = headers.aq.flow end
  end
  if f.r ~= '' then tenant = redis.call('HGET', P .. 'run:' .. f.r, 'tenant') or '' end
  return step, flow, tenant
end

-- Returns the pauses as {kind, name, its text, whether it is being lifted, whether a head that has
-- it must hold its name as it is}, nil where nothing is paused.
local function pauses(P)
  local flat = redis.call('HGETALL', P .. 'paused')
  if #flat == 0 then return nil end
  local found = {}
  for k = 1, #flat, 2 do
    local kind, name = string.match(flat[k], '^(%a+):(.*)$')
    found[#found + 1] = { kind = kind, name = name, text = flat[k],
      ending = string.sub(flat[k + 1], 1, 1) == '-', plain = not string.find(name, '[^%w_.:-]') }
  end
  return found
end

local function pool_is_paused(paused, pool)
  for _, pause in ipairs(paused or {}) do
    if pause.kind == 'pool' and pause.name == pool and not pause.ending then return true end
  end
  return false
end

-- Returns the pause that stops a message. While one is being lifted, only what came back from its
-- list (the returned stream) passes, so that nothing overtakes it. Reading a head costs 20 us, so it
-- is read only where the name is found in it.
local function stopped_by(P, f, paused, returned)
  local labels
  for _, pause in ipairs(paused) do
    if pause.kind ~= 'pool' and not (pause.ending and returned)
      and (pause.kind == 'tenant' or not pause.plain or string.find(f.h, pause.name, 1, true)) then
      if not labels then
        local step, flow, tenant = labels_of(P, f)
        labels = { step = step, flow = flow, tenant = tenant }
      end
      if labels[pause.kind] == pause.name then return pause.text end
    end
  end
end

local function order_of(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(seq)
end

local function later(a, b)
  local a1, a2 = order_of(a)
  local b1, b2 = order_of(b)
  if a1 > b1 or (a1 == b1 and a2 > b2) then return a end
  return b
end

local function last_read(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if not groups or groups.err or not groups[1] then return '0-0' end
  local flat = groups[1]
  for k = 1, #flat, 2 do
    if flat[k] == 'last-delivered-id' then return flat[k + 1] end
  end
  return '0-0'
end

-- Three readers of `count` messages, one a kind of source: each adds them to `found`, and returns the
-- next cursor, "" behind the last, and their bytes. Of a hash the server gives whole buckets: some
-- more, and while a child of it saves, when it lets no hash grow, 20 and more.
local function look_at_delayed(P, cursor, count, found)
  local reply, size = redis.call('HSCAN', P .. 'delayed:m', cursor == '' and '0' or cursor, 'COUNT', count), 0
  for k = 1, #reply[2], 2 do
    local bytes = reply[2][k + 1]
    local f, pool, lane = unpacked(bytes)
    found[#found + 1] = { reply[2][k], f, pool, lane, #bytes }
    size = size + #bytes
  end
  return reply[1] == '0' and '' or reply[1], size
end

local function look_at_aside(list, cursor, count, found)
  local from, size = tonumber(cursor) or 0, 0
  local there = redis.call('LRANGE', list, from, from + count - 1)
  for _, bytes in ipairs(there) do
    local f, pool, lane = unpacked(bytes)
    found[#found + 1] = { bytes, f, pool, lane, #bytes }
    size = size + #bytes
  end
  return #there == count and tostring(from + count) or '', size
end

local function look_at_queue(stream, from, count, found, pool, lane)
  local there, size = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', count), 0
  for _, entry in ipairs(there) do
    local f = fields_of(entry)
    found[#found + 1] = { entry[1], f, pool, lane, #f.h + #f.b }
    size = size + #f.h + #f.b
  end
  return #there == count and there[count][1] or '', size
end

-- Looks at up to `most` messages of one source, or `limit` bytes, from a cursor on ("" the beginning):
-- "s:<pool>:<lane>" and "r:<pool>:<lane>", of which only what no worker holds, "delayed", "aside:<pause>".
-- Returns the next cursor, "" behind the last, and {{where in the source, fields, pool, lane, bytes}..}.
local function look(P, source, cursor, most, limit)
  -- With less room than PIECE it begins with one message: four large ones would be all of it.
  local found, size, last = {}, 0, limit < PIECE and PIECE or nil
  local pool, lane = string.match(source, '^[sr]:(.-):(.*)$')
  if pool then
    local read = last_read(P .. source)
    cursor = cursor == '' and read or later(cursor, read)
  end
  repeat
    local count = few(most - #found, last)
    if pool then
      cursor, last = look_at_queue(P .. source, cursor, count, found, pool, lane)
    elseif source == 'delayed' then
      cursor, last = look_at_delayed(P, cursor, count, found)
    else
      cursor, last = look_at_aside(P .. source, cursor, count, found)
    end
    size = size + last
  until cursor == '' or #found >= most or size >= limit
  return cursor, found
end

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

-- The end of a delivery, within the budget of its run. Field `budget` of a run's record: "<members>
-- <bytes> <bytes of the first message>", as it was admitted; fields `members` and `bytes` count what
-- it used since: the members of its fan-outs; its messages and the outcomes of their members.
--
-- `spent` gathers what the runs use in one call, run -> {bytes, members, budget, keep_ms}.

local function budget_of(text)
  local members, bytes, first = string.match(text, '^(%d+) (%d+) (%d+)$')
  return tonumber(members), tonumber(bytes), tonumber(first)
end

-- Returns whether a run may have so many more bytes and members.
local function may_have(P, run, s, bytes, members)
  local most, most_bytes, first = budget_of(s[3])
  local used = redis.call('HMGET', P .. 'run:' .. run, 'bytes', 'members')
  return first + tonumber(used[1] or '0') + s[1] + bytes <= most_bytes
    and tonumber(used[2] or '0') + s[2] + members <= most
end

-- Tells why no result of a run is accepted any more: "ended", "late" (behind its deadline), or false.
local function over_already(record, now)
  if record[1] ~= 'running' then return 'ended' end
  local deadline = tonumber(record[2] or '0')
  return deadline > 0 and now > deadline and 'late'
end

-- Returns the fan-ins of its run that a message stands in: as a member (field j), as the body (its header).
local function joins_of(run, f)
  local names = {}
  local function name(join)
    if type(join) == 'string' and string.sub(join, 1, #run) == run then names[#names + 1] = join end
  end
  name(string.match(f.j, '^(.+)|'))
  local read, head = pcall(cjson.decode, f.h)
  local ours = read and type(head) == 'table' and type(head.headers) == 'table' and head.headers.aq
  if type(ours) == 'table' then name(ours.join) end
  return names
end

-- Ends one delivery with its effects: ARGV[i..n] = stream, entry, run, keep_ms, effects; `read`: bytes
-- of messages that this call read before. Returns what `complete` does, and the bytes that it read.
local function complete_one(P, argv, i, n, now, woken, spent, read)
  local stream, run = argv[i], argv[i + 2]
  local s, record = nil, run ~= '' and read_run(P, run) or nil
  local over = record and over_already(record, now)
  -- Nobody waits for the fan-ins of a run that is over: not even for what of them was held back. Behind
  -- PIECE bytes they are left to their time to live, where no other member of them comes by.
  local found = over and stream ~= '' and read < PIECE
    and redis.call('XRANGE', stream, argv[i + 1], argv[i + 1])[1]
  local f = found and fields_of(found)
  local joins = f and joins_of(run, f) or {}
  if stream ~= '' and not settle(stream, argv[i + 1]) then return 'stale' end
  if over then
    for _, join in ipairs(joins) do forget(P, join) end
    if over == 'late' then end_run(P, run, 'expired', 'null', tonumber(argv[i + 3]), now, nil, nil, record) end
    return over, f and #f.h + #f.b or 0
  end
  if record and record[4] then s = spent[run] or { 0, 0, record[4], tonumber(argv[i + 3]) } end
  local fits = s and function(bytes, members) return may_have(P, run, s, bytes, members) end
  local failed, bytes, members = apply(P, argv, i + 4, n, now, woken, fits, record)
  if failed then return failed end
  if s and bytes > 0 then
    s[1], s[2] = s[1] + bytes, s[2] + members
    spent[run] = s
  end
  return 'ok'
end

local function too_large(P, run, message, keep, now)
  end_run(P, run, 'failed', failure('RunTooLarge', message, ',"step":""'), keep, now)
end

-- Charges what was spent, one write a run and one more where it fanned out. A run that used more
-- than it has fails: its steps that wait or run are refused, as those of any ended run.
local function charge(P, spent, now)
  for run, s in pairs(spent) do
    local most, most_bytes, first = budget_of(s[3])
    local key = P .. 'run:' .. run
    local bytes = first + redis.call('HINCRBY', key, 'bytes', s[1])
    local members = s[2] > 0 and redis.call('HINCRBY', key, 'members', s[2]) or 0
    if members > most then
      too_large(P, run, string.format('its fan-outs together have %d members; runs.max_members ' ..
        '(or max_members= of the flow) is %d: split the work over several runs or raise it', members, most), s[4], now)
    elseif bytes > most_bytes then
      too_large(P, run, string.format('its messages and outcomes together are %d bytes; runs.max_bytes ' ..
        '(or max_bytes= of the flow) is %d: pass references or raise it', bytes, most_bytes), s[4], now)
    end
  end
end

-- What a run leaves behind that ends: deliveries that are delayed (the set `delayed:r:<run>`), and fan-ins
-- with members that wait for a place (the set `run:<run>:joins`). They take no room of runs that go on:
-- `end_run` puts such a run into the set `ended`, where `promote` finds it and drops them by the piece.
-- Where nobody did for all of runs.keep, the next run of that key does it: it begins behind them.

local SLICE = 50 -- messages whose names are read at once
local BEFORE = 200 -- at most, by the call that begins the next run

-- Drops up to `most` of what a run left, until it has read `limit` bytes, as a worker would that fetched
-- it. Returns how many, and the bytes. Cost: 10 us each.
local function drop_left(P, run, most, limit)
  local delayed = P .. 'delayed:r:' .. run
  local members = redis.call('SRANDMEMBER', delayed, math.min(SLICE, most))
  local found, done, size = undelay(P, members, limit)
  for _, one in ipairs(found) do
    for _, join in ipairs(joins_of(run, one[1])) do forget(P, join) end
  end
  if done > 0 then redis.call('SREM', delayed, unpack(members, 1, done)) end -- what is there no more too
  local joins = redis.call('SPOP', P .. 'run:' .. run .. ':joins', most - done)
  for _, join in ipairs(joins) do forget(P, join) end
  return done + #joins, size
end

-- Whether a run of this id is there. Where only its rest is, a piece of that is dropped; returns also
-- how much is left.
local function is_there(P, run)
  local key, delayed = P .. 'run:' .. run, P .. 'delayed:r:' .. run
  if redis.call('EXISTS', key, delayed, key .. ':joins') == 0 then return false, 0 end
  if redis.call('EXISTS', key) == 1 then return true, 0 end
  local dropped, bytes, done, size = 0, 0, 0, 0
  repeat
    done, size = drop_left(P, run, BEFORE - dropped, PIECE / 2 - bytes)
    dropped, bytes = dropped + done, bytes + size
  until done == 0 or dropped >= BEFORE or bytes >= PIECE / 2
  return false, redis.call('SCARD', delayed) + redis.call('SCARD', key .. ':joins')
end

-- Says which functions these are, and what time it is.
-- Returns  {now_ms, revision, digest}; the header that `library.source` writes holds the last two
-- On a full Redis, on a replica: allowed. Cost: 1 us.
local function about()
  return { now_ms(), REVISION, DIGEST }
end

redis.register_function{ function_name = 'aq1_about', callback = about, flags = { 'no-writes' } }

-- Cancels a run: no step of it starts any more, running ones are told, no result is accepted.
-- KEYS[1]  prefix
-- ARGV[1]  run
-- ARGV[2]  keep_ms   how long the run is kept
-- Returns  1 = cancelled by this call, 0 = had ended before, -1 = unknown
-- On a full Redis: allowed. Cost: 2 us a live worker.
local function cancel(keys, argv)
  local P, run = keys[1], argv[1]
  local now = now_ms()
  if redis.call('EXISTS', P .. 'run:' .. run) == 0 then return -1 end
  if not end_run(P, run, 'cancelled', 'null', tonumber(argv[2]), now) then return 0 end
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', now, '+inf')) do
    redis.call('RPUSH', P .. 'wake:' .. worker, 'cancel ' .. run)
    redis.call('PEXPIRE', P .. 'wake:' .. worker, 60000)
  end
  return 1
end

redis.register_function{ function_name = 'aq1_cancel', callback = cancel, flags = { 'allow-oom' } }

-- Ends a delivery with everything that follows from it: all of it, or nothing.
-- KEYS[1]  prefix
-- ARGV[1]  stream    where the delivery came from; "" ends none (a child whose parent acks)
-- ARGV[2]  entry     the delivery's id: the fence
-- ARGV[3]  run       run id or ""
-- ARGV[4]  keep_ms   how long an ended run is kept
-- ARGV[5..] effects
-- Returns  "ok" | "stale": not the owner, nothing changed | "ended": the run has ended, effects
--          dropped | "late": behind its deadline, the run is ended as expired
-- On a full Redis: allowed. Cost: 10-25 us.
local function complete(keys, argv)
  local P, now, woken, spent = keys[1], now_ms(), {}, {}
  local answer = complete_one(P, argv, 1, #argv, now, woken, spent, 0)
  charge(P, spent, now)
  if argv[1] ~= '' and answer ~= 'stale' then drained(P, { [argv[1]] = 1 }) end
  wake_all(P, woken, now)
  return answer
end

redis.register_function{ function_name = 'aq1_complete', callback = complete, flags = { 'allow-oom' } }

-- Ends several deliveries of one worker, each as `complete` would: all of one, or nothing of it.
-- KEYS[1]  prefix
-- ARGV     for each: how many arguments follow, then the arguments of `complete`
-- Returns  an answer of `complete` for each
-- On a full Redis: allowed. Cost: 10-20 us each; the caller keeps a call under 5 ms.
local function complete_many(keys, argv)
  local P, now, woken, spent = keys[1], now_ms(), {}, {}
  local answers, ended, i, read = {}, {}, 1, 0
  while i <= #argv do
    local n, stream = i + tonumber(argv[i]), argv[i + 1]
    local answer, bytes = complete_one(P, argv, i + 1, n, now, woken, spent, read)
    read = read + (bytes or 0)
    if stream ~= '' and answer ~= 'stale' then ended[stream] = (ended[stream] or 0) + 1 end
    answers[#answers + 1] = answer
    i = n + 1
  end
  charge(P, spent, now)
  drained(P, ended)
  wake_all(P, woken, now)
  return answers
end

redis.register_function{ function_name = 'aq1_complete_many', callback = complete_many, flags = { 'allow-oom' } }

-- Deletes dead letters for good. A run that waits for what was purged of it fails by that.
-- KEYS[1]  prefix
-- ARGV[1..] letters (ids of the stream `dead`), at most 100
-- Returns  for each: "ok" | "gone": replayed or dropped before; fewer answers than letters: call
--          again with the rest
-- On a full Redis: allowed. Cost: 5 us each, 15 more where a run fails, and 0.3 us a KB.
local function drop(keys, argv)
  return with_letters(keys[1], argv, function(id, f)
    drop_letter(keys[1], id, f, 'by hand')
    return 'ok'
  end)
end

redis.register_function{ function_name = 'aq1_drop', callback = drop, flags = { 'allow-oom' } }

-- Accepts new work: a plain message, several effects of one publish, or a run with its first step.
-- KEYS[1]  prefix
-- ARGV[1]  id        dedupe id, or "" for none          ARGV[2]  dedupe_ms
-- ARGV[3]  pool      queue whose caps are checked       ARGV[4]  lane
-- ARGV[5]  length    most messages in that lane         ARGV[6]  bytes     most of them together
-- ARGV[7]  tenant    whose run it is, or ""             ARGV[8]  per_tenant  unfinished runs, 0 = any
-- ARGV[9]  run       run id, or ""                      ARGV[10] record of the run, JSON, or ""
-- ARGV[11] deadline  ms of Redis' clock, 0 none; negative: minus that many ms from now
-- ARGV[12] keep_ms   how long an ended run is kept
-- ARGV[13] members   most members of the run's fan-outs ARGV[14] bytes     most of all its payloads
-- ARGV[15..] effects; a `spend` among them stands first
-- Returns  {"ok", depth, deadline_ms, fill, waiting, rate}: fill of the worst cap in thousandths,
--          messages that wait, completions in 1,000 s (-1: not known)
--          | {"dup"} | {"full", reason, there, limit, retry_ms}; reason: length, bytes,
--          delayed, delayed bytes, tenant, memory; left: what the last run of this id left is not
--          dropped yet, a call drops a piece of it (2 ms)
-- On a full Redis: refused whole. Cost: 15-30 us a message.
local function enqueue(keys, argv)
  local P, pool, lane = keys[1], argv[3], argv[4]
  local now = now_ms()
  local run, tenant = argv[9], argv[7]
  if run ~= '' then
    local there, left = is_there(P, run)
    if there then return { 'dup' } end
    if left > 0 then return { 'full', 'left', left, 0, SHORTEST_RETRY } end
  elseif argv[1] ~= '' and redis.call('EXISTS', P .. 'id:' .. argv[1]) == 1 then
    return { 'dup' }
  end
  local work = { depth = redis.call('XLEN', P .. 's:' .. pool .. ':' .. lane), more = 0,
    delayed = is_delayed(P, argv, 15, now), unfinished = 0, per_tenant = 0 }
  if tenant ~= '' then
    work.unfinished = tonumber(redis.call('HGET', P .. 'tenants', tenant) or '0')
    work.per_tenant = tonumber(argv[8])
  end
  local refused, fill, waiting, rate = admit(P, pool, lane, work, tonumber(argv[5]), tonumber(argv[6]), now)
  if refused then return refused end
  local bytes = 0
  for i = 15, #argv do bytes = bytes + #argv[i] end
  local stored = argv[15] == 'spend' and tonumber(argv[16]) or 0
  local deadline = tonumber(argv[11])
  if deadline < 0 then deadline = now - deadline end
  if run ~= '' then
    local key = P .. 'run:' .. run
    redis.call('HSET', key, 'state', 'running', 'at', now, 'deadline', deadline, 'record', argv[10],
      'budget', argv[13] .. ' ' .. argv[14] .. ' ' .. bytes + stored)
    if tenant ~= '' then
      redis.call('HSET', key, 'tenant', tenant)
      redis.call('HINCRBY', P .. 'tenants', tenant, 1)
    end
    redis.call('ZADD', P .. 'runs', now, run)
    if deadline > 0 then redis.call('ZADD', P .. 'due', deadline, run) end
  elseif argv[1] ~= '' then
    redis.call('SET', P .. 'id:' .. argv[1], '1', 'PX', argv[2])
  end
  if not work.delayed then grow(P, pool, lane, bytes) end
  local woken = {}
  local failed = apply(P, argv, 15, #argv, now, woken)
  wake_all(P, woken, now)
  if failed then return failed end
  return { 'ok', work.depth, deadline, fill, waiting, rate }
end

redis.register_function('aq1_enqueue', enqueue)

-- Ends a delivery whose step raised, by handing the same message out again after a delay.
-- (A failure for good is `complete` with the failure's effects.)
-- KEYS[1]  prefix
-- ARGV[1]  lane      "<pool>:<lane>"
-- ARGV[2]  stream    where the delivery came from
-- ARGV[3]  entry     the delivery's id: the fence
-- ARGV[4]  after_ms  delay before it is handed out again
-- ARGV[5]  retry     1 = counts as a retry, 0 = handed back unstarted, -n = the process in which it ran
--                    alone died: counts as an attempt, given up after n (then ARGV[4] is the run's keep_ms)
-- ARGV[6..] effects (events)
-- Returns  "ok" | "stale" | about how many ms longer a retry waits because others of its pool wait for
--          the budget (`_retries`)
-- On a full Redis: allowed. Cost: 10-20 us.
local function fail(keys, argv)
  local P, lane, stream, entry = keys[1], argv[1], argv[2], argv[3]
  local found = redis.call('XRANGE', stream, entry, entry)
  if not found[1] then return 'stale' end
  local now = now_ms()
  if tonumber(argv[5]) < 0 then
    local pending = redis.call('XPENDING', stream, GROUP, entry, entry, 1)[1]
    if not pending then return 'stale' end
    local woken = {}
    give_back(P, lane, stream, pending, 1, 0, -tonumber(argv[5]), tonumber(argv[4]), now, woken)
    wake_all(P, woken, now)
    return 'ok'
  end
  if not settle(stream, entry) then return 'stale' end
  local f = fields_of(found[1])
  local pool, name = string.match(lane, '^(.-):(.*)$')
  local counts, after, held = tonumber(argv[5]), tonumber(argv[4]), 0
  f.n, f.u = f.n + counts, 0 -- this worker had its code
  if counts == 1 then
    redis.call('HINCRBY', P .. 'load:' .. pool, 'f', 1)
    f.back, held = 1, retry_wait(P, pool, math.huge) - after
  end
  if after > 0 or (f.back and not may_retry(P, pool, now)) then
    delay(P, f, pool, name, now + after)
  else
    add(P, 'r:', message_of(f, pool, name), f.a, f.n, f.t)
    wake(P, pool, 1, now)
  end
  local woken = {}
  local failed = apply(P, argv, 6, #argv, now, woken)
  wake_all(P, woken, now)
  if failed then return failed end
  return held > 0 and held or 'ok'
end

redis.register_function{ function_name = 'aq1_fail', callback = fail, flags = { 'allow-oom' } }

-- Hands work to a worker, or notes that it has room.
-- KEYS[1]  prefix
-- ARGV[1]  worker    consumer name, with a live lease
-- ARGV[2]  pool
-- ARGV[3]  slots     how many messages at most
-- ARGV[4]  used      slots in use (the least busy worker is woken first)
-- ARGV[5..] pairs lane, quota: lanes in the order to read them, at most quota from each
-- Returns  {now_ms, {entry..}}; entry = {lane, stream, id, fields, live 0|1, deadline_ms}: live 0
--          where its run has ended; deadline is its run's, 0 none
--          {now_ms, false} when the worker holds no lease
-- Nothing is handed out of a paused pool; what is met of a paused step, flow or tenant is put aside.
-- On a full Redis: allowed (a delivery record is small). Cost: 8 reads, 2-4 us a message; 10 us of
-- one that is put aside, therefore at most 100 messages while there are pauses. A call ends behind
-- PIECE bytes.
local PAUSED_MOST = 100

local function fetch(keys, argv)
  local P, worker, pool = keys[1], argv[1], argv[2]
  local room = tonumber(argv[3])
  local now = now_ms()
  local term = redis.call('ZSCORE', P .. 'workers', worker)
  if not term then return { now, false } end
  -- Who asks lives: its lease goes on where it has run out and nobody has reaped it yet. What it is
  -- given would else be handed out again in a moment.
  if tonumber(term) <= now then new_term(P, worker, now) end
  local out, aside, size, paused = {}, 0, 0, pauses(P)
  local cut = paused and room > PAUSED_MOST
  if cut then room = PAUSED_MOST end
  if pool_is_paused(paused, pool) then
    redis.call('ZADD', P .. 'idle:' .. pool, argv[4], worker)
    return { now, out }
  end
  -- Puts an entry aside where a pause stops it.
  local function stopped(stream, lane, entry)
    local f = fields_of(entry)
    local pause = stopped_by(P, f, paused, string.sub(stream, #P + 1, #P + 2) == 'r:')
    if not pause then return false end
    put_aside(P, pause, f, pool, lane)
    size = size + #f.h + #f.b -- it is copied twice as often as what is handed out
    settle(stream, entry[1])
    aside = aside + 1
    return true
  end
  local function take(stream, lane, most)
    local got = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', most, 'STREAMS', stream, '>')
    if got and got.err then
      make_queue(P, stream, pool .. ':' .. lane) -- a stranger made the stream: it has no group yet
      got = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', most, 'STREAMS', stream, '>')
    end
    if not got then return 0 end
    local entries = got[1][2]
    for _, entry in ipairs(entries) do
      size = size + #(entry[2][8] or '') + #(entry[2][10] or '')
      if not (paused and stopped(stream, lane, entry)) then
        local live, deadline, run = 1, 0, entry[2][4]
        if entry[2][3] == 'r' and run ~= '' then
          local record = redis.call('HMGET', P .. 'run:' .. run, 'state', 'deadline')
          live, deadline = record[1] == 'running' and 1 or 0, tonumber(record[2] or '0')
        end
        out[#out + 1] = { lane, stream, entry[1], entry[2], live, deadline }
      end
    end
    return #entries
  end
  local function read(stream, lane, most)
    local total, asked, n, last = 0, 0, 0, nil
    while total < most and size < PIECE and n == asked do
      local before = size
      asked = few(most - total, last)
      n = take(stream, lane, asked)
      total, last = total + n, size - before
    end
    return total
  end
  for i = 5, #argv, 2 do
    if room <= 0 or size >= PIECE then break end
    local lane, quota = argv[i], math.min(tonumber(argv[i + 1]), room)
    local name = pool .. ':' .. lane
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. name
      if quota > 0 and redis.call('EXISTS', stream) == 1 then
        local n = read(stream, lane, quota)
        quota, room = quota - n, room - n
        if kind == 's:' and quota > 0 and redis.call('EXISTS', P .. 'open:' .. name) == 1 then
          size = size + spill(P, name, now, (PIECE - size) / 2)
          n = read(stream, lane, quota)
          quota, room = quota - n, room - n
        end
      end
    end
  end
  if aside > 0 or (cut and room <= 0) or size >= PIECE then -- it is to ask again, for what it did not get
    redis.call('RPUSH', P .. 'wake:' .. worker, '1')
    redis.call('PEXPIRE', P .. 'wake:' .. worker, 60000)
  end
  if room > 0 then redis.call('ZADD', P .. 'idle:' .. pool, argv[4], worker) end
  return { now, out }
end

redis.register_function{ function_name = 'aq1_fetch', callback = fetch, flags = { 'allow-oom' } }

-- Looks for the messages of one run among those of one source that wait.
-- KEYS[1]  prefix
-- ARGV[1]  source    as `purge` takes it
-- ARGV[2]  cursor    "" at first, then what the call before returned
-- ARGV[3]  most      messages looked at, at most 500
-- ARGV[4]  run
-- Returns  {next cursor or "" behind the last, messages looked at,
--           {{place among these from 0, where in the source, task id, step, pool, lane, retries,
--             enqueued ms, what no worker has, join}..}}
-- On a full Redis: allowed. Cost: 2 us a message; a call ends behind PIECE bytes.
local function find(keys, argv)
  local P, hits = keys[1], {}
  local cursor, found = look(P, argv[1], argv[2], tonumber(argv[3]), PIECE)
  for k, one in ipairs(found) do
    local f = one[2]
    if f.r == argv[4] then
      local step = labels_of(P, f)
      hits[#hits + 1] = { k - 1, one[1], f.i, step, one[3], one[4], f.n, f.t, f.unknown or '', f.j }
    end
  end
  return { cursor, #found, hits }
end

redis.register_function{ function_name = 'aq1_find', callback = find, flags = { 'no-writes', 'allow-oom' } }

-- Lists what is pending under a worker's name: after a cut link a fetch may have been answered into
-- the void, and the worker compares this with what it has in its hands.
-- KEYS[1]  prefix
-- ARGV[1]  worker
-- Returns  {{lane, stream, id}..}, lane as "<pool>:<lane>", all of them: what is left out would
--          be lost to the worker for as long as it lives
-- On a full Redis: allowed. Cost: 1 us an entry.
local function held(keys, argv)
  local P = keys[1]
  local out = {}
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. lane
      if redis.call('EXISTS', stream) == 1 then
        local from = '-'
        repeat
          local pending = redis.call('XPENDING', stream, GROUP, from, '+', 1000, argv[1])
          for _, entry in ipairs(pending) do out[#out + 1] = { lane, stream, entry[1] } end
          from = pending[1] and '(' .. pending[#pending][1]
        until #pending < 1000
      end
    end
  end
  return out
end

redis.register_function{ function_name = 'aq1_held', callback = held, flags = { 'no-writes', 'allow-oom' } }

-- Makes staged members visible in one step, on their own (a producer's group or chord).
-- KEYS[1]  prefix
-- ARGV[1]  id        dedupe id of the group, or ""      ARGV[2]  dedupe_ms
-- ARGV[3]  pool      queue whose caps are checked, "" = none     ARGV[4]  lane
-- ARGV[5]  length    most messages in that lane         ARGV[6]  bytes     most of them together
-- ARGV[7]  count     how many messages there are
-- ARGV[8..] effects (`open`, `join`, `put`)
-- Returns  {"ok"} | {"dup"} | {"full", reason, there, limit, retry_ms}, see `enqueue`
-- On a full Redis: refused whole. Cost: O(1) for `open`; at_once messages for `join`.
local function open(keys, argv)
  local P, pool, lane = keys[1], argv[3], argv[4]
  local now = now_ms()
  if argv[1] ~= '' and redis.call('EXISTS', P .. 'id:' .. argv[1]) == 1 then return { 'dup' } end
  if pool ~= '' then
    local depth = redis.call('XLEN', P .. 's:' .. pool .. ':' .. lane)
    -- Groups that are not in the queue yet have taken their place in it all the same.
    for _, group in ipairs(redis.call('LRANGE', P .. 'open:' .. pool .. ':' .. lane, 0, 999)) do
      depth = depth + redis.call('LLEN', P .. 'group:' .. group)
    end
    local work = { depth = depth, more = math.max(0, tonumber(argv[7]) - 1),
      delayed = is_delayed(P, argv, 8, now), unfinished = 0, per_tenant = 0 }
    local refused = admit(P, pool, lane, work, tonumber(argv[5]), tonumber(argv[6]), now)
    if refused then return refused end
  end
  if argv[1] ~= '' then redis.call('SET', P .. 'id:' .. argv[1], '1', 'PX', argv[2]) end
  local woken = {}
  local failed = apply(P, argv, 8, #argv, now, woken)
  wake_all(P, woken, now)
  if failed then return failed end
  return { 'ok' }
end

redis.register_function('aq1_open', open)

-- Hands back a delivery whose code this worker lacks: it rests, counted under its name, and is then
-- offered to whichever worker asks; after the limit it is a dead letter.
-- KEYS[1]  prefix
-- ARGV[1]  lane      "<pool>:<lane>"
-- ARGV[2]  stream    where the delivery came from
-- ARGV[3]  entry     the delivery's id: the fence
-- ARGV[4]  after_ms  how long it rests
-- ARGV[5]  name      what is lacking, as `agentq status` shows it
-- ARGV[6]  limit_ms  since the first hand-back
-- ARGV[7]  keep_ms   how long a run that ends by this is kept
-- Returns  "ok" | "dead" | "stale"
-- On a full Redis: allowed. Cost: 15 us.
local function park(keys, argv)
  local P, stream, entry = keys[1], argv[2], argv[3]
  local found = redis.call('XRANGE', stream, entry, entry)
  if not found[1] or not settle(stream, entry) then return 'stale' end
  local now, woken = now_ms(), {}
  local f = fields_of(found[1])
  local pool, lane = string.match(argv[1], '^(.-):(.*)$')
  local name, limit = string.sub(argv[5], 1, 200), tonumber(argv[6])
  local since = f.u > 0 and f.u or now
  if now - since >= limit then
    local message = 'unknown: no worker that saw it has ' .. name
    give_up(P, f, pool, lane, 'UnknownStep', message, tonumber(argv[7]), now, woken)
    wake_all(P, woken, now)
    return 'dead'
  end
  f.unknown, f.u = name, since
  delay(P, f, pool, lane, math.min(now + tonumber(argv[4]), since + limit))
  return 'ok'
end

redis.register_function{ function_name = 'aq1_park', callback = park, flags = { 'allow-oom' } }

-- Pauses a pool, step, flow or tenant: `fetch` hands out nothing of it from now on.
-- KEYS[1]  prefix
-- ARGV[1]  pause     "pool:<name>" | "step:<task>" | "flow:<name>" | "tenant:<name>"
-- Returns  1 = paused by this call, 0 = was paused
-- On a full Redis: allowed. Cost: 2 us.
local function pause(keys, argv)
  local key, now = keys[1] .. 'paused', now_ms()
  local since = redis.call('HGET', key, argv[1])
  if since and string.sub(since, 1, 1) ~= '-' then return 0 end
  redis.call('HSET', key, argv[1], since and string.sub(since, 2) or now)
  return 1
end

redis.register_function{ function_name = 'aq1_pause', callback = pause, flags = { 'allow-oom' } }

-- Ends runs behind their deadline and drops what is left of runs that have ended; moves delayed
-- messages that are due into their queues, retries among them as far as there are tokens; goes on with
-- pauses whose lifting was left undone; drops dead letters that are too old, many or large.
-- KEYS[1]  prefix
-- ARGV[1]  most      messages a call, at most 500
-- ARGV[2]  keep_ms   how long a run that ends by this is kept
-- ARGV[3]  dead_ms   how long a dead letter is kept
-- ARGV[4]  payload   broker.max_payload: a larger dead letter is cut
-- ARGV[5]  retries   "<retry.budget> <retry.per_second>"
-- ARGV[6]  number    most dead letters                 ARGV[7]  bytes     most of them together
-- Returns  {messages moved or, where there may be more, `most`, runs expired, next due ms or 0}
-- On a full Redis: allowed (moves, does not add). Cost: 5 us a message, 3 us to let a retry wait for its
-- token, 10 us to drop what an ended run left; a call ends behind PIECE bytes.
local DROPPED = 100 -- at most, by one call

local function put_into_queues(P, found, s, woken)
  for _, one in ipairs(found) do
    local f, pool, lane = one[1], one[2], one[3]
    -- What a dead process held goes before newer work, though it had to wait for a free place.
    add(P, f.s > 0 and 'r:' or 's:', message_of(f, pool, lane), f.a, f.n, f.t)
    woken[pool] = (woken[pool] or 0) + 1
  end
  s.moved = s.moved + #found
end

-- Does with the first of `members` what `undelay` does, as many as there are bytes left for; returns
-- those it found, and how many it has done with. `s`: see `promote`.
local function take_out(P, members, s, stays)
  local found, done, size = undelay(P, members, PIECE - s.bytes, stays)
  s.bytes = s.bytes + size
  return found, done
end

-- Moves what is due: into its queue, retries among those that wait for a token.
local function move_due(P, s, now, woken)
  while s.left > 0 and s.bytes < PIECE do
    local found = redis.call('ZRANGEBYSCORE', P .. 'delayed', '-inf', now, 'WITHSCORES', 'LIMIT', 0,
      math.min(SLICE, s.left))
    if not found[1] then return end
    local members, due = {}, {}
    for k = 1, #found, 2 do members[#members + 1], due[found[k]] = found[k], found[k + 1] end
    local ready, done = take_out(P, members, s, function(member, f, pool)
      if not f.back then return false end
      wait_for_token(P, pool, member, due[member], now)
      return true
    end)
    put_into_queues(P, ready, s, woken)
    s.left = s.left - done
  end
end

-- Starts the retries that have waited longest, of each pool as many as it has tokens. Those there are no
-- bytes left for give theirs back.
local function start_retries(P, s, now, woken)
  local pools = redis.call('ZRANGEBYSCORE', P .. 'tokens', '-inf', now, 'LIMIT', 0, SLICE)
  local ahead = redis.call('ZRANGEBYSCORE', P .. 'tokens', '(' .. now + LONGEST_MS, '+inf', 'LIMIT', 0, SLICE)
  for _, pool in ipairs(ahead) do pools[#pools + 1] = pool end
  for _, pool in ipairs(pools) do
    local key, at, taken = P .. 'retries:' .. pool, now, 1
    while taken > 0 and s.left > 0 and s.bytes < PIECE do
      taken, at = take_tokens(P, pool, math.min(SLICE, s.left, redis.call('ZCARD', key)), now)
      local members = taken > 0 and redis.call('ZRANGE', key, 0, taken - 1) or {}
      local found, done = take_out(P, members, s)
      put_into_queues(P, found, s, woken)
      if done < taken then _, at = take_tokens(P, pool, done - taken, now) end
      s.left = s.left - done
    end
    if redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', P .. 'tokens', pool)
    else
      redis.call('ZADD', P .. 'tokens', at, pool)
    end
  end
end

-- Drops what is left of runs that have ended, and have not begun anew since. Half of the bytes are left
-- for what is due. Returns whether there may be more.
local function drop_ended(P, s)
  local dropped = 0
  while dropped < DROPPED and s.bytes < PIECE / 2 do
    local run = redis.call('SRANDMEMBER', P .. 'ended')
    if not run then return false end
    local done, size = 0, 0
    if redis.call('HGET', P .. 'run:' .. run, 'state') ~= 'running' then
      done, size = drop_left(P, run, DROPPED - dropped, PIECE / 2 - s.bytes)
    end
    if done == 0 then redis.call('SREM', P .. 'ended', run) end
    dropped, s.bytes = dropped + math.max(1, done), s.bytes + size
  end
  return true
end

-- `s`: what a call may still look at and what it did: {left, moved, bytes}.
local function promote(keys, argv)
  local P, most, keep = keys[1], tonumber(argv[1]), tonumber(argv[2])
  local now, woken, s = now_ms(), {}, { left = tonumber(argv[1]), moved = 0, bytes = 0 }
  if argv[5] then redis.call('SET', P .. 'retries', argv[5]) end
  local late = redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now - 1, 'LIMIT', 0, 100)
  for _, run in ipairs(late) do
    if not end_run(P, run, 'expired', 'null', keep, now) then redis.call('ZREM', P .. 'due', run) end
  end
  local more = drop_ended(P, s)
  move_due(P, s, now, woken)
  start_retries(P, s, now, woken)
  more = more or s.left <= 0 or s.bytes >= PIECE
  for _, pause in ipairs(pauses(P) or {}) do
    if pause.ending then _, _, s.bytes = bring_back(P, pause.text, 100, s.bytes, woken) end
  end
  wake_all(P, woken, now)
  local old = redis.call('ZRANGEBYSCORE', P .. 'runs', '-inf', now - keep * 2, 'LIMIT', 0, 500)
  if old[1] then redis.call('ZREM', P .. 'runs', unpack(old)) end
  if argv[3] then
    redis.call('HSET', P .. 'dead:n', 'max_payload', argv[4], 'max_number', argv[6] or DEAD_NUMBER,
      'max_bytes', argv[7] or DEAD_BYTES, 'runs_keep', keep)
    trim_to_fit(P, s.bytes, now - tonumber(argv[3]))
    if redis.call('XLEN', P .. 'dead') == 0 then redis.call('HSET', P .. 'dead:n', 'bytes', 0) end
  end
  local first = tonumber(redis.call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')[2])
  local token = tonumber(redis.call('ZRANGE', P .. 'tokens', 0, 0, 'WITHSCORES')[2])
  return { more and most or s.moved, #late, math.min(first or token or 0, token or first or 0) }
end

redis.register_function{ function_name = 'aq1_promote', callback = promote, flags = { 'allow-oom' } }

-- Moves what waits and fits a filter into the dead letters, one piece of one source a call. Runs and
-- fan-ins are told nothing: a letter can be replayed, and its run goes on. It fails once the letter is dropped.
-- KEYS[1]  prefix
-- ARGV[1]  source    "s:<pool>:<lane>" | "r:<pool>:<lane>" | "delayed" | "aside:<pause>"
-- ARGV[2]  cursor    "" at first, then what the call before returned
-- ARGV[3]  most      messages looked at, at most 200
-- ARGV[4]  reason
-- ARGV[5]  pool      ARGV[6] lane    ARGV[7] step    ARGV[8] flow    ARGV[9] tenant; "" = any
-- ARGV[10] before    only what was enqueued before this, ms; negative: minus that many ms ago
-- Returns  {next cursor or "" behind the last, messages moved, 1 = the dead letters are full}
-- On a full Redis: allowed (moves, does not add). Cost: 15 us a message; a call ends behind half of PIECE bytes.
local function purge(keys, argv)
  local P, source, now, moved = keys[1], argv[1], now_ms(), 0
  local limit = PIECE / 2 -- each is read, and written as a letter
  if string.match(source, '^s:') then limit = limit - spill(P, string.sub(source, 3), now, limit / 2) end
  local before = tonumber(argv[10])
  if before < 0 then before = now + before end
  local cursor, found = look(P, source, argv[2], tonumber(argv[3]), limit)
  local room, bytes = letters_room(P)
  local function fits(f, pool, lane)
    if argv[5] ~= '' and argv[5] ~= pool then return false end
    if argv[6] ~= '' and argv[6] ~= lane then return false end
    if before > 0 and f.t >= before then return false end
    if argv[7] == '' and argv[8] == '' and argv[9] == '' then return true end
    local step, flow, tenant = labels_of(P, f)
    return (argv[7] == '' or argv[7] == step) and (argv[8] == '' or argv[8] == flow)
      and (argv[9] == '' or argv[9] == tenant)
  end
  for _, one in ipairs(found) do
    local place, f, pool, lane, there = one[1], one[2], one[3], one[4], true
    if fits(f, pool, lane) then
      local size = #argv[4] + #f.h + #f.b
      if room <= 0 or bytes < size then return { argv[2], moved, 1 } end
      if source == 'delayed' then
        there = take_delayed(P, place, f, pool, lane, one[5]) -- two looks may show one twice
      elseif string.match(source, '^aside:') then
        take_aside(P, P .. source, place, pool, lane)
      else
        redis.call('XDEL', P .. source, place)
      end
      if there then
        dead(P, argv[4], f, pool, lane, waits_for(P, f))
        moved, room, bytes = moved + 1, room - 1, bytes - size
      end
    end
  end
  if cursor ~= '' and string.match(source, '^aside:') then cursor = tostring(tonumber(cursor) - moved) end
  if cursor == '' and string.match(source, '^s:') and redis.call('EXISTS', P .. 'open:' .. string.sub(source, 3)) == 1 then
    cursor = found[#found] and found[#found][1] or '0-0' -- there is more of an opened group
  end
  return { cursor, moved, 0 }
end

redis.register_function{ function_name = 'aq1_purge', callback = purge, flags = { 'allow-oom' } }

-- Hands out again what a process held whose lease ran out: as suspects, uncharged. What it held alone
-- is charged where it runs suspects itself (Celery's threads and solo); the others run them in
-- processes of their own and tell of those that die, which they say by `suspects` in their report.
-- KEYS[1]  prefix
-- ARGV[1]  limit     attempts before a message is dead
-- ARGV[2]  gap_ms    if nobody reaped for so long, nobody could renew: every lease gets a new term
-- ARGV[3]  keep_ms   how long a run that ends by this is kept
-- ARGV[4]  workers   "1": answer with how many there are (builds before revision 3 do not ask)
-- Returns  {messages returned, worker or "", workers that hold a lease, 0 = nobody was looked at}; the
--          last, for those that do not ask: when the next lease runs out, now where one has, 0 none
-- A gap, a clock that went back or a new server (see `server_changed`): every lease gets a new term.
-- On a full Redis: allowed. Cost: one process a call, at most HANDED_BACK messages, 15 us each, or
-- PIECE bytes.
local function isolates(P, worker)
  local text = redis.call('HGET', P .. 'worker:' .. worker, 'report')
  local read, report = pcall(cjson.decode, text or '')
  if not read or type(report) ~= 'table' then return true end
  return (tonumber(report.suspects) or 0) > 0
end

local function holds_one(P, worker)
  local count = 0
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. lane
      if redis.call('EXISTS', stream) == 1 then
        count = count + #redis.call('XPENDING', stream, GROUP, '-', '+', 2, worker)
      end
    end
  end
  return count == 1
end

local function reap(keys, argv)
  local P = keys[1]
  local now = now_ms()
  local workers = P .. 'workers'
  local last = tonumber(redis.call('GET', P .. 'reap:last') or '0')
  redis.call('SET', P .. 'reap:last', now)
  if last > 0 and (now - last > tonumber(argv[2]) or now < last) then
    server_changed(P) -- this new term counts for that too
    new_terms(P, now)
    return { 0, '', 0 }
  end
  local expired = redis.call('ZRANGEBYSCORE', workers, '-inf', now, 'LIMIT', 0, 1)
  if expired[1] and server_changed(P) then
    new_terms(P, now)
    return { 0, '', 0 }
  end
  if expired[1] then
    local charge = not isolates(P, expired[1]) and holds_one(P, expired[1]) and 1 or 0
    local count = hand_back(P, expired[1], charge, 1 - charge, tonumber(argv[1]), tonumber(argv[3]), now)
    return { count, expired[1], argv[4] and redis.call('ZCARD', workers) or now }
  end
  if argv[4] then return { 0, '', redis.call('ZCARD', workers) } end
  local first = redis.call('ZRANGE', workers, 0, 0, 'WITHSCORES')
  return { 0, '', tonumber(first[2] or '0') }
end

redis.register_function{ function_name = 'aq1_reap', callback = reap, flags = { 'allow-oom' } }

-- Gives up a lease: what the process still held is handed out again at once, uncharged.
-- KEYS[1]  prefix
-- ARGV[1]  worker
-- ARGV[2]  charge    0 = it stopped in order, 1 = it died
-- ARGV[3]  limit     attempts before a message is dead      ARGV[4]  keep_ms
-- Returns  messages handed back; HANDED_BACK means: call again (it were so many, or PIECE bytes)
-- On a full Redis: allowed. Cost: 15 us a message; a call ends behind PIECE bytes.
local function release_lease(keys, argv)
  local count, more = hand_back(keys[1], argv[1], tonumber(argv[2]), 0, tonumber(argv[3]), tonumber(argv[4]), now_ms())
  return more and HANDED_BACK or count
end

redis.register_function{ function_name = 'aq1_release', callback = release_lease, flags = { 'allow-oom' } }

-- Takes or renews a process' lease.
-- KEYS[1]  prefix
-- ARGV[1]  worker    its name, new at each start
-- ARGV[2]  lease_ms
-- ARGV[3]  first     1 = take, 0 = renew: a lease that was reaped can not be renewed
-- ARGV[4]  report    JSON: what the worker says of itself, "" = unchanged
-- Returns  {now_ms, 1} | {now_ms, 0}: the lease is lost
-- On a full Redis: allowed. Cost: 3 us; to take one, 25.
local function renew(keys, argv)
  local P, worker = keys[1], argv[1]
  local now = now_ms()
  if argv[3] == '0' and not redis.call('ZSCORE', P .. 'workers', worker) then return { now, 0 } end
  if argv[3] == '1' and server_changed(P) then new_terms(P, now) end
  redis.call('ZADD', P .. 'workers', now + tonumber(argv[2]), worker)
  local info = P .. 'worker:' .. worker
  if argv[4] ~= '' then redis.call('HSET', info, 'lease', argv[2], 'report', argv[4]) end
  -- A day: whoever reaps it, however late, reads there what it was.
  redis.call('PEXPIRE', info, math.max(tonumber(argv[2]) * 4, 86400000))
  return { now, 1 }
end

redis.register_function{ function_name = 'aq1_renew', callback = renew, flags = { 'allow-oom' } }

-- Moves dead letters back into their queues, as new: no delay, no attempts charged, and no expiry:
-- one that has passed would end it again.
-- KEYS[1]  prefix
-- ARGV[1..] letters (ids of the stream `dead`), at most 100
-- Returns  for each: "ok" | "gone": replayed or dropped before | "cut": not whole |
--          "nowhere": its queue is not known | "ended": its run has ended | "counted": its fan-in
--          has its outcome or has ended. Fewer answers than letters: call again with the rest
-- On a full Redis: allowed (moves, does not add). Cost: 10 us each, and 1 us a KB.
local function replay_one(P, id, f, woken)
  if (f.c or '0') ~= '0' then return 'cut' end
  if (f.p or '') == '' or (f.l or '') == '' then return 'nowhere' end
  if f.r ~= '' and redis.call('HGET', P .. 'run:' .. f.r, 'state') ~= 'running' then return 'ended' end
  if is_counted(P, f) then return 'counted' end
  -- The first there is: what a head nests stands behind it, and in a text the quotes are escaped.
  local head = string.gsub(f.h, '"expires":"[^"]*"', '"expires":null', 1)
  add(P, 's:', { pool = f.p, lane = f.l, id = f.i, run = f.r, join = f.j, h = head, b = f.b }, 0, 0, 0)
  take_letter(P, id, f)
  woken[f.p] = (woken[f.p] or 0) + 1
  return 'ok'
end

local function replay(keys, argv)
  local P, woken = keys[1], {}
  local answers = with_letters(P, argv, function(id, f) return replay_one(P, id, f, woken) end)
  wake_all(P, woken, now_ms())
  return answers
end

redis.register_function{ function_name = 'aq1_replay', callback = replay, flags = { 'allow-oom' } }

-- Lifts a pause: what was put aside is handed out again before what came later. Whatever a caller
-- that is killed leaves undone, `promote` goes on with.
-- KEYS[1]  prefix
-- ARGV[1]  pause     as `pause` takes it
-- ARGV[2]  most      messages a call, at most 500
-- Returns  {1 = was paused | 0, messages brought back, messages left}
-- On a full Redis: allowed (moves, does not add). Cost: 5 us a message; a call ends behind PIECE bytes.
local function resume(keys, argv)
  local P, name, now, woken = keys[1], argv[1], now_ms(), {}
  local since = redis.call('HGET', P .. 'paused', name)
  if not since then return { 0, 0, 0 } end
  if string.sub(since, 1, 1) ~= '-' then redis.call('HSET', P .. 'paused', name, '-' .. since) end
  local pool = string.match(name, '^pool:(.*)$')
  if pool then woken[pool] = 16 end
  local moved, left = bring_back(P, name, tonumber(argv[2]), 0, woken)
  wake_all(P, woken, now)
  return { 1, moved, left }
end

redis.register_function{ function_name = 'aq1_resume', callback = resume, flags = { 'allow-oom' } }

-- Stages members of a large group or fan-in; they become visible with the effect `open` or `join`.
-- KEYS[1]  prefix
-- ARGV[1]  group     id of the group; new at each attempt of the step that fans out
-- ARGV[2]  offset    how many members were staged before this chunk (a repeated chunk is ignored)
-- ARGV[3..] messages, at most 500 a call
-- Returns  members staged so far
-- On a full Redis: refused whole; as aq1_stage_started, for members of work that runs already,
-- allowed. Cost: about 3 us a member.
local function stage(keys, argv)
  local P = keys[1]
  local key = P .. 'stage:' .. argv[1]
  local length = redis.call('LLEN', key)
  if length ~= tonumber(argv[2]) then return length end
  local i = 3
  while i <= #argv do
    local m
    m, i = message_at(argv, i)
    redis.call('RPUSH', key, pack(m))
  end
  redis.call('PEXPIRE', key, STAGE_TTL)
  return redis.call('LLEN', key)
end

redis.register_function('aq1_stage', stage)
redis.register_function{ function_name = 'aq1_stage_started', callback = stage, flags = { 'allow-oom' } }
