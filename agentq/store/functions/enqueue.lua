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
