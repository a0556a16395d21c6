-- Moves delayed messages that are due into their queues, ends runs behind their deadline, drops dead
-- letters that are too old, many or large, and goes on with pauses whose lifting was left undone.
-- KEYS[1]  prefix
-- ARGV[1]  most      messages a call, at most 500
-- ARGV[2]  keep_ms   how long a run that ends by this is kept
-- ARGV[3]  dead_ms   how long a dead letter is kept
-- ARGV[4]  payload   broker.max_payload: a larger dead letter is cut
-- ARGV[5]  retries   "<retry.budget> <retry.per_second>"
-- ARGV[6]  number    most dead letters                 ARGV[7]  bytes     most of them together
-- Returns  {messages moved or, where there may be more, `most`, runs expired, next due ms or 0}
-- On a full Redis: allowed (moves, does not add). Cost: 5 us a message; a call ends behind PIECE bytes.
local SLICE = 50

local function promote(keys, argv)
  local P = keys[1]
  local now = now_ms()
  local woken = {}
  local most, moved, size, due = tonumber(argv[1]), 0, 0, nil
  while moved < most and size < PIECE do
    due = redis.call('ZRANGEBYSCORE', P .. 'delayed', '-inf', now, 'LIMIT', 0, math.min(SLICE, most - moved))
    if not due[1] then break end
    for _, one in ipairs(undelay(P, due)) do
      local f, pool, lane = one[1], one[2], one[3]
      -- What a dead process held goes before newer work, though it had to wait for a free place.
      add(P, f.s > 0 and 'r:' or 's:', message_of(f, pool, lane), f.a, f.n, f.t)
      woken[pool] = (woken[pool] or 0) + 1
      size = size + #f.h + #f.b
    end
    moved = moved + #due
  end
  if size >= PIECE then moved = most end -- there may be more
  for _, pause in ipairs(pauses(P) or {}) do
    if pause.ending then bring_back(P, pause.text, 100, woken) end
  end
  wake_all(P, woken, now)
  local late = redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now - 1, 'LIMIT', 0, 100)
  for _, run in ipairs(late) do
    if not end_run(P, run, 'expired', 'null', tonumber(argv[2]), now) then redis.call('ZREM', P .. 'due', run) end
  end
  local keep = tonumber(argv[2])
  local old = redis.call('ZRANGEBYSCORE', P .. 'runs', '-inf', now - keep * 2, 'LIMIT', 0, 500)
  if old[1] then redis.call('ZREM', P .. 'runs', unpack(old)) end
  if argv[3] then
    redis.call('HSET', P .. 'dead:n', 'max_payload', argv[4], 'max_number', argv[6] or DEAD_NUMBER,
      'max_bytes', argv[7] or DEAD_BYTES)
    trim_to_fit(P, now - tonumber(argv[3]))
    if redis.call('XLEN', P .. 'dead') == 0 then redis.call('HSET', P .. 'dead:n', 'bytes', 0) end
  end
  if argv[5] then redis.call('SET', P .. 'retries', argv[5]) end
  local first = redis.call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')
  return { moved, #late, tonumber(first[2] or '0') }
end

redis.register_function{ function_name = 'aq1_promote', callback = promote, flags = { 'allow-oom' } }
