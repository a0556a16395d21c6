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
--   b  the bucket as text: "<at, ms> <tokens> <attempts a ms> <n + f as last seen>"; below 0 tokens
--      retries wait for theirs

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
  local at, tokens, attempts, seen = string.match(found[3] or '', '^(%S+) (%S+) (%S+) (%S+)$')
  at, tokens = tonumber(at) or now, tonumber(tokens) or least * WINDOW
  attempts, seen = tonumber(attempts) or 0, tonumber(seen) or ended
  local passed, made = math.max(0, now - at), math.max(0, ended - seen)
  local weight = math.min(1, passed / WINDOW)
  if tokens > 0 then tokens = tokens * (1 - weight) end
  -- After longer than WINDOW: of what was made since, as much as in one.
  tokens = tokens + share * made * (passed > WINDOW and WINDOW / passed or 1)
    + math.max(0, least - share * attempts) * math.min(passed, WINDOW) - 1
  attempts = attempts * (1 - weight) + made / math.max(passed, WINDOW)
  local rate = math.max(least, share * attempts)
  redis.call('HSET', load, 'b', string.format('%.0f %.3f %.6f %.0f', now, tokens, attempts, ended))
  return math.max(due, tokens < 0 and now + math.ceil(-tokens / rate) or 0)
end
