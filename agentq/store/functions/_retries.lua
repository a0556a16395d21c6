-- How many retries a pool starts, so that what it depends on and fails is not asked ever more often.
--
-- A retry takes a token when it starts. Each attempt of the pool brings `retry.budget` percent of one,
-- and where that is less than `retry.per_second`, time brings the rest; tokens fade within WINDOW.
-- So a quiet pool has ten seconds' worth of them: its first retries are never held. Finagle's budget,
-- and Linkerd's.
--
-- A retry that is due and has no token waits for one, behind those that wait already; `promote` starts
-- the oldest as tokens come, so their rate is what the bucket says by then. The field's budgets (gRPC,
-- Finagle, Envoy) refuse it, since there a caller is on the line who can do without; here the work
-- was accepted and lies in Redis, where waiting costs nobody anything, and failing it would make
-- lost runs of a dependency's bad minute. A run's deadline bounds the wait.
--
-- One bucket a pool, here and not in each worker: a thousand buckets would be a thousand minimums,
-- and a worker that is killed and comes back would begin with a full one. It costs nothing where
-- nothing is retried, since completions are counted anyway. The keys:
--   retries          the two settings, as `promote` notes them
--   retries:<pool>   what waits for a token, score = when it was due; it is delayed, see `_beside`
--   tokens           pools where retries wait, score = when to look for tokens, ms
-- and of `load:<pool>` the fields
--   f  attempts that ended in a retry by `fail` (what ends by `complete` is in n)
--   b  the bucket, packed: {at, tokens, attempts a ms, n + f as last seen}

local WINDOW = 10000
local LATELY = 2000 -- ms over which attempts are averaged, so that time brings tokens again soon after a storm
local HANDFUL_MS = 250 -- between two looks at a bucket: tokens are given out by the handful
local LONGEST_MS = 2000 -- no token is further off, as time brings one a second; if it is, the clock went back
local BUDGET, PER_SECOND = 20, 10

local function retry_settings(P)
  local text = redis.call('GET', P .. 'retries') or ''
  local percent, least = string.match(text, '^(%d+) (%d+)$')
  return (tonumber(percent) or BUDGET) / 100, (tonumber(least) or PER_SECOND) / 1000
end

-- Takes as many tokens as there are, `most` at most, or gives some back (`most` is below 0); returns how
-- many it took, and when to look for more.
local function take_tokens(P, pool, most, now)
  local load = P .. 'load:' .. pool
  local share, least = retry_settings(P)
  local found = redis.call('HMGET', load, 'n', 'f', 'b')
  local ended = tonumber(found[1] or '0') + tonumber(found[2] or '0')
  local b = found[3] and cmsgpack.unpack(found[3]) or { now, least * WINDOW, 0, ended }
  local passed, made = math.max(0, now - b[1]), math.max(0, ended - b[4])
  local attempts = b[3] * (1 - math.min(1, passed / LATELY)) + made / math.max(passed, LATELY)
  -- After longer than WINDOW: of what was made since, as much as in one. The last token does not fade.
  local tokens = b[2] - math.max(0, b[2] - 1) * math.min(1, passed / WINDOW)
    + share * made * (passed > WINDOW and WINDOW / passed or 1)
    + math.max(0, least - share * attempts) * math.min(passed, WINDOW)
  local taken = math.min(most, math.floor(tokens))
  tokens = tokens - taken
  redis.call('HSET', load, 'b', cmsgpack.pack({ now, tokens, attempts, ended }))
  if tokens >= 1 then return taken, now end
  return taken, now + math.max(HANDFUL_MS, math.ceil((1 - tokens) / math.max(least, share * attempts)) + 1)
end

-- Whether a retry may start at once; takes its token.
local function may_retry(P, pool, now)
  if redis.call('EXISTS', P .. 'retries:' .. pool) == 1 then return false end
  local taken = take_tokens(P, pool, 1, now)
  return taken == 1
end

local function wait_for_token(P, pool, member, due, now)
  redis.call('ZADD', P .. 'retries:' .. pool, due, member)
  redis.call('ZADD', P .. 'tokens', 'NX', now, pool)
end

-- Returns in how many ms the first `count` of the retries that wait will have started, as the bucket
-- was last seen; 0: none waits.
local function retry_wait(P, pool, count)
  local waiting = redis.call('ZCARD', P .. 'retries:' .. pool)
  if waiting == 0 then return 0 end
  local share, least = retry_settings(P)
  local b = redis.call('HGET', P .. 'load:' .. pool, 'b')
  local attempts = b and cmsgpack.unpack(b)[3] or 0
  return math.ceil(math.min(count, waiting) / math.max(least, share * attempts))
end
