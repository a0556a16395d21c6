-- Accepts new work: a plain message, several effects of one publish, or a run with its first step.
-- KEYS[1]  prefix
-- ARGV[1]  id        dedupe id, or "" for none          ARGV[2]  dedupe_ms
-- ARGV[3]  pool      queue whose cap is checked         ARGV[4]  lane
-- ARGV[5]  limit     most messages in that lane
-- ARGV[6]  run       run id, or ""                      ARGV[7]  record of the run, JSON, or ""
-- ARGV[8]  deadline  ms of Redis' clock, 0 none; negative: minus that many ms from now
-- ARGV[9]  keep_ms   how long an ended run is kept
-- ARGV[10..] effects
-- Returns  {"ok", depth, deadline_ms} | {"dup"} | {"full", depth}
-- On a full Redis: refused whole. Cost: 15-30 us a message.
local function enqueue(keys, argv)
  local P = keys[1]
  local now = now_ms()
  local run = argv[6]
  if run ~= '' then
    local key = P .. 'run:' .. run
    if redis.call('EXISTS', key) == 1 then return { 'dup' } end
  elseif argv[1] ~= '' and redis.call('EXISTS', P .. 'id:' .. argv[1]) == 1 then
    return { 'dup' }
  end
  local stream = P .. 's:' .. argv[3] .. ':' .. argv[4]
  local depth = redis.call('XLEN', stream)
  if depth >= tonumber(argv[5]) then return { 'full', depth } end
  local deadline = tonumber(argv[8])
  if deadline < 0 then deadline = now - deadline end
  if run ~= '' then
    redis.call('HSET', P .. 'run:' .. run, 'state', 'running', 'at', now, 'deadline', deadline, 'record', argv[7])
    redis.call('ZADD', P .. 'runs', now, run)
    if deadline > 0 then redis.call('ZADD', P .. 'due', deadline, run) end
  elseif argv[1] ~= '' then
    redis.call('SET', P .. 'id:' .. argv[1], '1', 'PX', argv[2])
  end
  local woken = {}
  local failed = apply(P, argv, 10, #argv, now, woken)
  wake_all(P, woken, now)
  if failed then return failed end
  return { 'ok', depth, deadline }
end

redis.register_function('aq1_enqueue', enqueue)
