-- What a run and a Celery result show to those who wait for them.

local EVENTS_KEPT = 20000

local function event(P, run, kind, data)
  redis.call('XADD', P .. 'run:' .. run .. ':ev', 'MAXLEN', '~', EVENTS_KEPT, '*', 'e', kind, 'd', data)
end

local COUNTED = 5000 -- fields of `counts`; of names beyond them nothing is counted

-- Counts what metrics are asked for: once a run, or for what is rare. A field is "<kind>:<name>|<what>".
local function count(P, field)
  local key = P .. 'counts'
  if redis.call('HINCRBY', key, field, 1) == 1 and redis.call('HLEN', key) > COUNTED then
    redis.call('HDEL', key, field)
  end
end

-- Reads what a run's end and a completion ask of it, once for both: {state, deadline, tenant, budget, record}.
local function read_run(P, run)
  local record = redis.call('HMGET', P .. 'run:' .. run, 'state', 'deadline', 'tenant', 'budget', 'record')
  record.run = run
  return record
end

-- Ends a run once: the first end stands. `kind`, `last`: the event of the step that ended it, kept
-- in one entry with the end (field x), since both come with each run's last step. `record`: of some
-- run, as `read_run` gave it in this call.
local function end_run(P, run, state, data, keep, now, kind, last, record)
  local key = P .. 'run:' .. run
  if not record or record.run ~= run then record = read_run(P, run) end
  if record[1] ~= 'running' then return false end
  record[1] = state
  if record[3] and redis.call('HINCRBY', P .. 'tenants', record[3], -1) <= 0 then
    redis.call('HDEL', P .. 'tenants', record[3])
  end
  redis.call('HSET', key, 'state', state, 'ended', now, 'result', data)
  local flow = string.match(record[5] or '', '^{"flow":"([^"\\]+)"')
  if flow then count(P, 'run:' .. flow .. '|' .. state) end
  if record[2] ~= '0' then redis.call('ZREM', P .. 'due', run) end
  if redis.call('EXISTS', P .. 'delayed:r:' .. run, key .. ':joins') > 0 then redis.call('SADD', P .. 'ended', run) end
  if kind then
    redis.call('XADD', key .. ':ev', '*', 'e', kind, 'd', last, 'x', '"' .. state .. '"')
  else
    event(P, run, 'end', '"' .. state .. '"')
  end
  redis.call('PEXPIRE', key, keep)
  redis.call('PEXPIRE', key .. ':ev', keep)
  return true
end

local function meta(P, id, ttl, document)
  local key = P .. 'celery-task-meta-' .. id
  redis.call('SET', key, document, 'PX', ttl)
  redis.call('PUBLISH', key, document)
end
