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
  local P, stream, run = keys[1], argv[1], argv[3]
  if stream ~= '' and not settle(stream, argv[2]) then return 'stale' end
  local now = now_ms()
  if run ~= '' then
    local record = redis.call('HMGET', P .. 'run:' .. run, 'state', 'deadline')
    if record[1] ~= 'running' then return 'ended' end
    local deadline = tonumber(record[2] or '0')
    if deadline > 0 and now > deadline then
      end_run(P, run, 'expired', 'null', tonumber(argv[4]), now)
      return 'late'
    end
  end
  local failed = apply(P, argv, 5, now)
  if failed then return failed end
  return 'ok'
end

redis.register_function{ function_name = 'aq1_complete', callback = complete, flags = { 'allow-oom' } }
