-- When leases are given a new term although nobody renewed them.

-- Gives a lease one full term from now on.
local function new_term(P, worker, now)
  local lease = tonumber(redis.call('HGET', P .. 'worker:' .. worker, 'lease') or '15000')
  redis.call('ZADD', P .. 'workers', now + lease, worker)
end

-- Gives one to every lease: nobody could renew for a while.
local function new_terms(P, now)
  for _, worker in ipairs(redis.call('ZRANGE', P .. 'workers', 0, -1)) do new_term(P, worker, now) end
end

-- Whether this server is another than the one that was here before: a failover, or a restart.
-- Asked where it matters and seldom: before a lease is taken or reaped. Cost: 20 us.
local function server_changed(P)
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
  if not run then return false end -- its rights forbid INFO
  local before = redis.call('GET', P .. 'reap:server')
  if before == run then return false end
  redis.call('SET', P .. 'reap:server', run)
  return before and true or false
end
