-- What the functions share: the clock, handing over a message, and the effects of a state change.
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
--
-- Effects stand flat in ARGV, opcode first, and are applied in order by `apply`:
--   put    <message>                                      enqueue (or delay) one message
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
--   dead   <reason> <task> <attempts> <headers> <body> <retries> <born_ms> <pool> <lane> <run> <join>
--                                                         keep a dead letter
-- Callers check before they call `apply`: nothing in it refuses, since Redis rolls nothing back.

local GROUP = 'w'
local EVENTS_KEPT = 20000
local DEAD_KEPT = 10000
local DEAD_BYTES = 65536
local MAX_PAYLOAD = 262144
local STAGE_TTL = 600000
local HANDED_BACK = 250 -- at most, by one call: 11 us each

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
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

local function delay(P, m, due, attempts, retries, born)
  redis.call('ZADD', P .. 'delayed', due, m.id .. '#' .. retries)
  redis.call('HSET', P .. 'delayed:m', m.id .. '#' .. retries, cmsgpack.pack(
    { m.pool, m.lane, m.id, m.run, m.join, m.h, m.b, attempts, retries, born, m.unknown or '', m.u or 0, m.s or 0 }))
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

local function pack(m)
  return cmsgpack.pack({ m.pool, m.lane, m.due, m.id, m.run, m.join, m.h, m.b })
end

local function unpack_message(bytes)
  local v = cmsgpack.unpack(bytes)
  return { pool = v[1], lane = v[2], due = v[3], id = v[4], run = v[5], join = v[6], h = v[7], b = v[8] }
end

-- Puts a message where it belongs and notes which pool to wake.
local function put(P, m, now, woken)
  if m.due < 0 then m.due = now - m.due end
  if m.due > now then
    delay(P, m, m.due, 0, 0, now)
  else
    add(P, 's:', m, 0, 0, 0)
    woken[m.pool] = (woken[m.pool] or 0) + 1
  end
end

local function wake_all(P, woken, now)
  for pool, count in pairs(woken) do wake(P, pool, math.min(count, 16), now) end
end

local function release(P, join, count, now, woken)
  if count <= 0 then return end
  local members = redis.call('LPOP', P .. 'join:' .. join .. ':wait', count)
  if members then
    for _, bytes in ipairs(members) do put(P, unpack_message(bytes), now, woken) end
  end
end

local function finish_join(P, join, now, woken)
  local bodies = redis.call('HGET', P .. 'join:' .. join, 'body')
  for _, bytes in ipairs(cmsgpack.unpack(bodies)) do put(P, unpack_message(bytes), now, woken) end
  redis.call('HSET', P .. 'join:' .. join, 'state', 'done')
  redis.call('UNLINK', P .. 'join:' .. join .. ':wait')
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
  end
  local waiting = key .. ':wait'
  if group then
    if fresh and redis.call('EXISTS', P .. 'stage:' .. group) == 1 then
      redis.call('RENAME', P .. 'stage:' .. group, waiting)
      redis.call('PEXPIRE', waiting, ttl)
      release(P, join, at_once, now, woken)
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
  local v = redis.call('HMGET', key, 'state', 'width', 'more')
  if v[1] ~= 'open' or redis.call('HSETNX', key .. ':res', index, outcome) == 0 then return end
  local done = redis.call('HINCRBY', key, 'done', 1)
  if done == 1 then redis.call('PEXPIRE', key .. ':res', redis.call('PTTL', key)) end
  release(P, join, 1, now, woken)
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

local function event(P, run, kind, data)
  redis.call('XADD', P .. 'run:' .. run .. ':ev', 'MAXLEN', '~', EVENTS_KEPT, '*', 'e', kind, 'd', data)
end

-- Ends a run once: the first end stands. `kind`, `last`: the event of the step that ended it, kept
-- in one entry with the end (field x), since both come with each run's last step.
local function end_run(P, run, state, data, keep, now, kind, last)
  local key = P .. 'run:' .. run
  local record = redis.call('HMGET', key, 'state', 'deadline', 'tenant')
  if record[1] ~= 'running' then return false end
  if record[3] and redis.call('HINCRBY', P .. 'tenants', record[3], -1) <= 0 then
    redis.call('HDEL', P .. 'tenants', record[3])
  end
  redis.call('HSET', key, 'state', state, 'ended', now, 'result', data)
  if record[2] ~= '0' then redis.call('ZREM', P .. 'due', run) end
  if kind then
    redis.call('XADD', key .. ':ev', '*', 'e', kind, 'd', last, 'x', '"' .. state .. '"')
  else
    event(P, run, 'end', '"' .. state .. '"')
  end
  redis.call('PEXPIRE', key, keep)
  redis.call('PEXPIRE', key .. ':ev', keep)
  return true
end

-- Keeps a letter: whole up to broker.max_payload (`promote` notes it); of a larger one the beginning,
-- which can not be replayed (field c: how many bytes it had).
local function dead(P, reason, f, pool, lane)
  local most = tonumber(redis.call('GET', P .. 'payload') or MAX_PAYLOAD)
  local h, b, cut = f.h, f.b, 0
  if #h > most or #b > most then
    h, b, cut = string.sub(h, 1, DEAD_BYTES), string.sub(b, 1, DEAD_BYTES), #h + #b
  end
  redis.call('XADD', P .. 'dead', 'MAXLEN', DEAD_KEPT, '*', 'why', string.sub(reason, 1, 1000),
    'i', string.sub(f.i, 1, 1000), 'a', f.a, 'h', h, 'b', b, 'n', f.n, 't', f.t, 'p', pool, 'l', lane,
    'r', f.r, 'j', f.j, 'c', cut)
end

local function meta(P, id, ttl, document)
  local key = P .. 'celery-task-meta-' .. id
  redis.call('SET', key, document, 'PX', ttl)
  redis.call('PUBLISH', key, document)
end

-- Takes the next chunk of opened groups into their lane; called by `fetch` when a lane runs low.
local function spill(P, lane, now)
  local open = P .. 'open:' .. lane
  local group = redis.call('LINDEX', open, 0)
  if not group then return end
  local key = P .. 'group:' .. group
  local members = redis.call('LPOP', key, 200)
  if members then
    local woken = {}
    for _, bytes in ipairs(members) do put(P, unpack_message(bytes), now, woken) end
  end
  if redis.call('EXISTS', key) == 0 then redis.call('LPOP', open) end
end

local function always() return true end

-- Applies the effects in ARGV[i..n]; `woken` gathers which pools to wake (`wake_all`). `fits` says of
-- bytes and members whether the run may have them. Returns an error or nil, and both as they came.
local function apply(P, argv, i, n, now, woken, fits)
  local bytes, members = 0, 0
  while i <= n do
    local op = argv[i]
    i = i + 1
    if op == 'put' then
      local m
      m, i = message_at(argv, i)
      bytes = bytes + #m.h + #m.b
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
        end_run(P, run, argv[i + 5], argv[i + 6], tonumber(argv[i + 7]), now, argv[i + 1], argv[i + 2])
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
      redis.call('UNLINK', P .. 'join:' .. argv[i] .. ':res', P .. 'join:' .. argv[i])
      i = i + 1
    elseif op == 'end' then
      end_run(P, argv[i], argv[i + 1], argv[i + 2], tonumber(argv[i + 3]), now)
      i = i + 4
    elseif op == 'dead' then
      dead(P, argv[i], { i = argv[i + 1], a = argv[i + 2], h = argv[i + 3], b = argv[i + 4], n = argv[i + 5],
        t = argv[i + 6], r = argv[i + 9], j = argv[i + 10] }, argv[i + 7], argv[i + 8])
      i = i + 11
    else
      return redis.error_reply('AQ unknown effect ' .. tostring(op))
    end
  end
  return nil, bytes, members
end

-- Ends a delivery: true where this worker still owned it. The entry's id is the fence, since every
-- hand-over to another worker is a new entry; an acked entry can not be acked again.
local function settle(stream, entry)
  if redis.call('XACK', stream, GROUP, entry) == 0 then return false end
  redis.call('XDEL', stream, entry)
  return true
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

-- Ends what will not be tried again: its result, its fan-in or its run get an error of that kind,
-- and it is kept as a dead letter.
local function give_up(P, f, pool, lane, kind, message, keep, now, woken)
  local exc = cjson.encode({ exc_type = kind, exc_message = { message }, exc_module = 'agentq.errors' })
  meta(P, f.i, 86400000, '{"status":"FAILURE","result":' .. exc ..
    ',"traceback":null,"children":[],"task_id":' .. cjson.encode(f.i) .. '}')
  dead(P, message, f, pool, lane)
  if f.j ~= '' then
    local join, index = string.match(f.j, '^(.*)|(%d+)$')
    part(P, join, index, cjson.encode({ kind = kind, message = message, step = '', attempts = f.a }), now, woken)
  elseif f.r ~= '' then
    end_run(P, f.r, 'failed', cjson.encode({ kind = kind, message = message, step = f.i }), keep, now)
  end
end

-- Moves one pending entry of a stream to where it is handed out again; dead after `limit` attempts.
-- `charge`: 1 = counts as an attempt; `suspect`: 1 = it may be what its process died of.
local function give_back(P, lane, stream, entry, charge, suspect, limit, keep, now, woken)
  local found = redis.call('XRANGE', stream, entry, entry)
  if not found[1] then
    redis.call('XACK', stream, GROUP, entry)
    return
  end
  local f = fields_of(found[1])
  local attempts, suspected = f.a + charge, f.s + suspect
  local pool, name = string.match(lane, '^(.-):(.*)$')
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
end

-- Empties one worker's hands: its pending entries are handed out again, then its lease is gone.
local function hand_back(P, worker, charge, suspect, limit, keep, now)
  local woken, count = {}, 0
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. lane
      if redis.call('EXISTS', stream) == 1 then
        local pending = redis.call('XPENDING', stream, GROUP, '-', '+', HANDED_BACK - count, worker)
        for _, entry in ipairs(pending) do
          give_back(P, lane, stream, entry[1], charge, suspect, limit, keep, now, woken)
          count = count + 1
        end
        if count >= HANDED_BACK then
          wake_all(P, woken, now)
          return count
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
  return count
end
