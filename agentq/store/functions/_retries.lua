-- How many retries a pool starts, so that what it depends on and fails is not asked ever more often.
--
-- Retries are at most `retry.budget` percent of the attempts that the pool makes, and where that is
-- less, `retry.per_second`: a bucket of tokens, one a retry, as Finagle's and Envoy's. It fills at
--     rate = max(per_second, budget / 100 * attempts a second, smoothed over WINDOW)
-- and holds what comes in within WINDOW, so that a quiet pool's first retries are never held.
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
  local passed = math.max(0, now - b[1])
  local weight = math.min(1, passed / WINDOW)
  local attempts = b[3]
  if passed > 0 then attempts = attempts * (1 - weight) + math.max(0, ended - b[4]) / passed * weight end
  local rate = math.max(least, share * attempts)
  local tokens = math.min(b[2] + passed * rate, rate * WINDOW) - 1
  if passed == 0 then ended = b[4] end -- seen with the next one that comes later
  redis.call('HSET', load, 'b', cmsgpack.pack({ now, tokens, attempts, ended }))
  return math.max(due, tokens < 0 and now + math.ceil(-tokens / rate) or 0)
end
