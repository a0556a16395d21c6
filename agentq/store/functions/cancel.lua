-- Cancels a run: no step of it starts any more, running ones are told, no result is accepted.
-- KEYS[1]  prefix
-- ARGV[1]  run
-- ARGV[2]  keep_ms   how long the run is kept
-- Returns  1 = cancelled by this call, 0 = had ended before, -1 = unknown
-- On a full Redis: allowed. Cost: 2 us a live worker.
local function cancel(keys, argv)
  local P, run = keys[1], argv[1]
  local now = now_ms()
  if redis.call('EXISTS', P .. 'run:' .. run) == 0 then return -1 end
  if not end_run(P, run, 'cancelled', 'null', tonumber(argv[2]), now) then return 0 end
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', now, '+inf')) do
    redis.call('RPUSH', P .. 'wake:' .. worker, 'cancel ' .. run)
    redis.call('PEXPIRE', P .. 'wake:' .. worker, 60000)
  end
  return 1
end

redis.register_function{ function_name = 'aq1_cancel', callback = cancel, flags = { 'allow-oom' } }
