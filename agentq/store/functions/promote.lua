-- Ends runs behind their deadline and drops what is left of runs that have ended; moves delayed
-- messages that are due into their queues, retries among them as far as there are tokens; goes on with
-- pauses whose lifting was left undone; drops dead letters that are too old, many or large.
-- KEYS[1]  prefix
-- ARGV[1]  most      messages a call, at most 500
-- ARGV[2]  keep_ms   how long a run that ends by this is kept
-- ARGV[3]  dead_ms   how long a dead letter is kept
-- ARGV[4]  payload   broker.max_payload: a larger dead letter is cut
-- ARGV[5]  retries   "<retry.budget> <retry.per_second>"
-- ARGV[6]  number    most dead letters                 ARGV[7]  bytes     most of them together
-- Returns  {messages moved or, where there may be more, `most`, runs expired, next due ms or 0}
-- On a full Redis: allowed (moves, does not add). Cost: 5 us a message, 3 us to let a retry wait for its
-- token, 10 us to drop what an ended run left; a call ends behind PIECE bytes.
local DROPPED = 100 -- at most, by one call

local function put_into_queues(P, found, s, woken)
  for _, one in ipairs(found) do
    local f, pool, lane = one[1], one[2], one[3]
    -- What a dead process held goes before newer work, though it had to wait for a free place.
    add(P, f.s > 0 and 'r:' or 's:', message_of(f, pool, lane), f.a, f.n, f.t)
    woken[pool] = (woken[pool] or 0) + 1
  end
  s.moved = s.moved + #found
end

-- Does with the first of `members` what `undelay` does, as many as there are bytes left for; returns
-- those it found, and how many it has done with. `s`: see `promote`.
local function take_out(P, members, s, stays)
  local found, done, size = undelay(P, members, PIECE - s.bytes, stays)
  s.bytes = s.bytes + size
  return found, done
end

-- Moves what is due: into its queue, retries among those that wait for a token.
local function move_due(P, s, now, woken)
  while s.left > 0 and s.bytes < PIECE do
    local found = redis.call('ZRANGEBYSCORE', P .. 'delayed', '-inf', now, 'WITHSCORES', 'LIMIT', 0,
      math.min(SLICE, s.left))
    if not found[1] then return end
    local members, due = {}, {}
    for k = 1, #found, 2 do members[#members + 1], due[found[k]] = found[k], found[k + 1] end
    local ready, done = take_out(P, members, s, function(member, f, pool)
      if not f.back then return false end
      wait_for_token(P, pool, member, due[member], now)
      return true
    end)
    put_into_queues(P, ready, s, woken)
    s.left = s.left - done
  end
end

-- Starts the retries that have waited longest, of each pool as many as it has tokens. Those there are no
-- bytes left for give theirs back.
local function start_retries(P, s, now, woken)
  local pools = redis.call('ZRANGEBYSCORE', P .. 'tokens', '-inf', now, 'LIMIT', 0, SLICE)
  local ahead = redis.call('ZRANGEBYSCORE', P .. 'tokens', '(' .. now + LONGEST_MS, '+inf', 'LIMIT', 0, SLICE)
  for _, pool in ipairs(ahead) do pools[#pools + 1] = pool end
  for _, pool in ipairs(pools) do
    local key, at, taken = P .. 'retries:' .. pool, now, 1
    while taken > 0 and s.left > 0 and s.bytes < PIECE do
      taken, at = take_tokens(P, pool, math.min(SLICE, s.left, redis.call('ZCARD', key)), now)
      local members = taken > 0 and redis.call('ZRANGE', key, 0, taken - 1) or {}
      local found, done = take_out(P, members, s)
      put_into_queues(P, found, s, woken)
      if done < taken then _, at = take_tokens(P, pool, done - taken, now) end
      s.left = s.left - done
    end
    if redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', P .. 'tokens', pool)
    else
      redis.call('ZADD', P .. 'tokens', at, pool)
    end
  end
end

-- Drops what is left of runs that have ended, and have not begun anew since. Half of the bytes are left
-- for what is due. Returns whether there may be more.
local function drop_ended(P, s)
  local dropped = 0
  while dropped < DROPPED and s.bytes < PIECE / 2 do
    local run = redis.call('SRANDMEMBER', P .. 'ended')
    if not run then return false end
    local done, size = 0, 0
    if redis.call('HGET', P .. 'run:' .. run, 'state') ~= 'running' then
      done, size = drop_left(P, run, DROPPED - dropped, PIECE / 2 - s.bytes)
    end
    if done == 0 then redis.call('SREM', P .. 'ended', run) end
    dropped, s.bytes = dropped + math.max(1, done), s.bytes + size
  end
  return true
end

-- `s`: what a call may still look at and what it did: {left, moved, bytes}.
local function promote(keys, argv)
  local P, most, keep = keys[1], tonumber(argv[1]), tonumber(argv[2])
  local now, woken, s = now_ms(), {}, { left = tonumber(argv[1]), moved = 0, bytes = 0 }
  if argv[5] then redis.call('SET', P .. 'retries', argv[5]) end
  local late = redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now - 1, 'LIMIT', 0, 100)
  for _, run in ipairs(late) do
    if not end_run(P, run, 'expired', 'null', keep, now) then redis.call('ZREM', P .. 'due', run) end
  end
  local more = drop_ended(P, s)
  move_due(P, s, now, woken)
  start_retries(P, s, now, woken)
  more = more or s.left <= 0 or s.bytes >= PIECE
  for _, pause in ipairs(pauses(P) or {}) do
    if pause.ending then _, _, s.bytes = bring_back(P, pause.text, 100, s.bytes, woken) end
  end
  wake_all(P, woken, now)
  local old = redis.call('ZRANGEBYSCORE', P .. 'runs', '-inf', now - keep * 2, 'LIMIT', 0, 500)
  if old[1] then redis.call('ZREM', P .. 'runs', unpack(old)) end
  if argv[3] then
    redis.call('HSET', P .. 'dead:n', 'max_payload', argv[4], 'max_number', argv[6] or DEAD_NUMBER,
      'max_bytes', argv[7] or DEAD_BYTES, 'runs_keep', keep)
    trim_to_fit(P, s.bytes, now - tonumber(argv[3]))
    if redis.call('XLEN', P .. 'dead') == 0 then redis.call('HSET', P .. 'dead:n', 'bytes', 0) end
  end
  local first = tonumber(redis.call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')[2])
  local token = tonumber(redis.call('ZRANGE', P .. 'tokens', 0, 0, 'WITHSCORES')[2])
  return { more and most or s.moved, #late, math.min(first or token or 0, token or first or 0) }
end

redis.register_function{ function_name = 'aq1_promote', callback = promote, flags = { 'allow-oom' } }
