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
