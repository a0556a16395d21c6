-- How many retries a pool starts, so that what it depends on and fails is not asked ever more often.
--
-- A retry takes a token. Each attempt of the pool brings `retry.budget` percent of one, and where that
-- is less than `retry.per_second`, time brings the rest; a token fades within WINDOW. So a quiet pool
-- has ten seconds' worth of them: its first retries are never held. Finagle's budget, and Linkerd's.
--
-- A retry beyond it waits for its token, behind those that wait already. The field's budgets (gRPC,
-- Finagle, Envoy) refuse it, since there a caller is on the line who can do without; here the work
-- was accepted and lies in Redis, where waiting costs nobody anything, and failing it would make
-- lost runs of a dependency's bad minute. A run's deadline bounds the wait.
--
-- One bucket a pool, here and not in each worker: a thousand buckets would be a thousand minimums,
-- and a worker that is killed and comes back would begin with a full one. It costs nothing where
-- nothing is retried, since completions are counted anyway. Key `retries`: the two settings, as
-- `promote` notes them; of `load:<pool>` the fields
--   f  attempts that ended in a retry by `fail` (what ends by `complete` is in n)
--   b  the bucket, packed: {at, tokens, attempts a ms, n + f as last seen}
--   w  until when tokens are spoken for, ms, where retries had to wait

local WINDOW = 10000
local BUDGET, PER_SECOND = 20, 10

local function retry_settings(P)
  local text = redis.call('GET', P .. 'retries') or ''
  local percent, least = string.match(text, '^(%d+) (%d+)$')
  return (tonumber(percent) or BUDGET) / 100, (tonumber(least) or PER_SECOND) / 1000
end

-- Takes a token; returns when the retry may start that is due at `due`.
local function retry_at(P, pool, due, now)
  local load = P .. 'load:' .. pool
  local share, least = retry_settings(P)
  local found = redis.call('HMGET', load, 'n', 'f', 'b')
  local ended = tonumber(found[1] or '0') + tonumber(found[2] or '0')
  local b = found[3] and cmsgpack.unpack(found[3]) or { now, least * WINDOW, 0, ended }
  local tokens, attempts = b[2], b[3]
  local passed, made = math.max(0, now - b[1]), math.max(0, ended - b[4])
  local weight = math.min(1, passed / WINDOW)
  if tokens > 0 then tokens = tokens * (1 - weight) end
  -- After longer than WINDOW: of what was made since, as much as in one.
  tokens = tokens + share * made * (passed > WINDOW and WINDOW / passed or 1)
    + math.max(0, least - share * attempts) * math.min(passed, WINDOW)
  -- A quiet pool pays its debt by all of the time that has passed, and has its first retries free.
  if passed > WINDOW then tokens = math.min(tokens + least * (passed - WINDOW), least * WINDOW) end
  tokens = tokens - 1
  attempts = attempts * (1 - weight) + made / math.max(passed, WINDOW)
  local rate = math.max(least, share * attempts)
  redis.call('HSET', load, 'b', cmsgpack.pack({ now, tokens, attempts, ended }))
  if tokens >= 0 then return due end
  local free = now + math.ceil(-tokens / rate)
  redis.call('HSET', load, 'w', free)
  return math.max(due, free)
end
