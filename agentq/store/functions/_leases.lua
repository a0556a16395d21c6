-- When leases are given a new term although nobody renewed them.

-- Gives every lease one full term from now on: nobody could renew for a while.
local function new_terms(P, now)
  local workers = P .. 'workers'
  for _, worker in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
    local lease = tonumber(redis.call('HGET', P .. 'worker:' .. worker, 'lease') or '15000')
    redis.call('ZADD', workers, now + lease, worker)
  end
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
