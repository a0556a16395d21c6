-- Hands back a delivery whose code this worker lacks: it rests, counted under its name, and is then
-- offered to whichever worker asks; after the limit it is a dead letter.
-- KEYS[1]  prefix
-- ARGV[1]  lane      "<pool>:<lane>"
-- ARGV[2]  stream    where the delivery came from
-- ARGV[3]  entry     the delivery's id: the fence
-- ARGV[4]  after_ms  how long it rests
-- ARGV[5]  name      what is lacking, as `agentq status` shows it
-- ARGV[6]  limit_ms  since the first hand-back
-- ARGV[7]  keep_ms   how long a run that ends by this is kept
-- Returns  "ok" | "dead" | "stale"
-- On a full Redis: allowed. Cost: 15 us.
local function park(keys, argv)
  local P, stream, entry = keys[1], argv[2], argv[3]
  local found = redis.call('XRANGE', stream, entry, entry)
  if not found[1] or not settle(stream, entry) then return 'stale' end
  local now, woken = now_ms(), {}
  local f = fields_of(found[1])
  local pool, lane = string.match(argv[1], '^(.-):(.*)$')
  local name, limit = string.sub(argv[5], 1, 200), tonumber(argv[6])
  local since = f.u > 0 and f.u or now
  if now - since >= limit then
    local message = 'unknown: no worker that saw it has ' .. name
    give_up(P, f, pool, lane, 'UnknownStep', message, tonumber(argv[7]), now, woken)
    wake_all(P, woken, now)
    return 'dead'
  end
  f.unknown, f.u = name, since
  delay(P, f, pool, lane, math.min(now + tonumber(argv[4]), since + limit))
  return 'ok'
end

redis.register_function{ function_name = 'aq1_park', callback = park, flags = { 'allow-oom' } }
