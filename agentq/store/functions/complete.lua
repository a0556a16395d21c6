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
