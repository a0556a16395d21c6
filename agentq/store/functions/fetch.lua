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
