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
