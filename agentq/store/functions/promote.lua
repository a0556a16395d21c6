-- Moves delayed messages that are due into their queues, and ends runs behind their deadline.
-- KEYS[1]  prefix
-- ARGV[1]  most      messages a call, at most 500
-- ARGV[2]  keep_ms   how long a run that ends by this is kept
-- Returns  {messages moved, runs expired, next due ms or 0}
-- On a full Redis: allowed (moves, does not add). Cost: 5 us a message.
local function promote(keys, argv)
  local P = keys[1]
  local now = now_ms()
  local woken = {}
  local due = redis.call('ZRANGEBYSCORE', P .. 'delayed', '-inf', now, 'LIMIT', 0, argv[1])
  for _, member in ipairs(due) do
    local bytes = redis.call('HGET', P .. 'delayed:m', member)
    if bytes then
      local v = cmsgpack.unpack(bytes)
      add(P, 's:', { pool = v[1], lane = v[2], id = v[3], run = v[4], join = v[5], h = v[6], b = v[7] },
        v[8], v[9], v[10])
      woken[v[1]] = (woken[v[1]] or 0) + 1
      redis.call('HDEL', P .. 'delayed:m', member)
    end
    redis.call('ZREM', P .. 'delayed', member)
  end
  wake_all(P, woken, now)
  local late = redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now - 1, 'LIMIT', 0, 100)
  for _, run in ipairs(late) do
    if not end_run(P, run, 'expired', 'null', tonumber(argv[2]), now) then redis.call('ZREM', P .. 'due', run) end
  end
  local keep = tonumber(argv[2])
  redis.call('ZREMRANGEBYSCORE', P .. 'runs', '-inf', now - keep * 2)
  local first = redis.call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')
  return { #due, #late, tonumber(first[2] or '0') }
end

redis.register_function{ function_name = 'aq1_promote', callback = promote, flags = { 'allow-oom' } }
