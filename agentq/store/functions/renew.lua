-- Takes or renews a process' lease.
-- KEYS[1]  prefix
-- ARGV[1]  worker    its name, new at each start
-- ARGV[2]  lease_ms
-- ARGV[3]  first     1 = take, 0 = renew: a lease that was reaped can not be renewed
-- ARGV[4]  report    JSON: what the worker says of itself, "" = unchanged
-- Returns  {now_ms, 1} | {now_ms, 0}: the lease is lost
-- On a full Redis: allowed. Cost: 3 us; to take one, 25.
local function renew(keys, argv)
  local P, worker = keys[1], argv[1]
  local now = now_ms()
  if argv[3] == '0' and not redis.call('ZSCORE', P .. 'workers', worker) then return { now, 0 } end
  if argv[3] == '1' and server_changed(P) then new_terms(P, now) end
  redis.call('ZADD', P .. 'workers', now + tonumber(argv[2]), worker)
  local info = P .. 'worker:' .. worker
  if argv[4] ~= '' then redis.call('HSET', info, 'lease', argv[2], 'report', argv[4]) end
  -- A day: whoever reaps it, however late, reads there what it was.
  redis.call('PEXPIRE', info, math.max(tonumber(argv[2]) * 4, 86400000))
  return { now, 1 }
end

redis.register_function{ function_name = 'aq1_renew', callback = renew, flags = { 'allow-oom' } }
