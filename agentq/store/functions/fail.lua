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
