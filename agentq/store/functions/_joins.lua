-- Fan-ins, and the members of large groups that wait for a place in their lane.

local STAGE_TTL = 600000

local function release(P, join, count, now, woken)
  if count <= 0 then return end
  local members = redis.call('LPOP', P .. 'join:' .. join .. ':wait', count)
  if members then
    for _, bytes in ipairs(members) do put(P, unpack_message(bytes), now, woken) end
  end
end

local function finish_join(P, join, now, woken)
  local bodies = redis.call('HGET', P .. 'join:' .. join, 'body')
  for _, bytes in ipairs(cmsgpack.unpack(bodies)) do put(P, unpack_message(bytes), now, woken) end
  redis.call('HSET', P .. 'join:' .. join, 'state', 'done')
  redis.call('UNLINK', P .. 'join:' .. join .. ':wait')
end

-- Drops a fan-in that nobody waits for any more.
local function forget(P, join)
  local key = P .. 'join:' .. join
  redis.call('UNLINK', key, key .. ':res', key .. ':wait')
end

-- Opens a fan-in; a join of that id that exists already stays as it is. Returns the next index, and
-- bytes and members to charge; what the run's budget does not allow is charged and not opened.
local function open_join(P, argv, i, now, woken, fits)
  local join, width, at_once = argv[i], tonumber(argv[i + 1]), tonumber(argv[i + 2])
  local ttl, run, bodies, members = tonumber(argv[i + 3]), argv[i + 4], tonumber(argv[i + 5]), argv[i + 6]
  i = i + 7
  local key = P .. 'join:' .. join
  local fresh = redis.call('EXISTS', key) == 0
  local packed = {}
  local size, group = string.match(members, '^staged:(%d+):(.+)$')
  local bytes = tonumber(size or '0')
  for n = 1, bodies do
    local m
    m, i = message_at(argv, i)
    packed[n] = pack(m)
    bytes = bytes + #m.h + #m.b
  end
  if not group then
    for k = i, i + tonumber(members) * 8 - 1, 8 do bytes = bytes + #argv[k + 6] + #argv[k + 7] end
  end
  if not fits(bytes, math.max(width, 0)) then
    if group then redis.call('UNLINK', P .. 'stage:' .. group) end
    return group and i or i + tonumber(members) * 8, bytes, math.max(width, 0)
  end
  if fresh then
    redis.call('HSET', key, 'width', width, 'more', 0, 'done', 0, 'run', run, 'state', 'open',
      'body', cmsgpack.pack(packed))
    redis.call('PEXPIRE', key, ttl)
  end
  local waiting = key .. ':wait'
  if group then
    if fresh and redis.call('EXISTS', P .. 'stage:' .. group) == 1 then
      redis.call('RENAME', P .. 'stage:' .. group, waiting)
      redis.call('PEXPIRE', waiting, ttl)
      release(P, join, at_once, now, woken)
    end
  else
    for n = 1, tonumber(members) do
      local m
      m, i = message_at(argv, i)
      if fresh then
        if n <= at_once then put(P, m, now, woken) else redis.call('RPUSH', waiting, pack(m)) end
      end
    end
    if fresh and tonumber(members) > at_once then redis.call('PEXPIRE', waiting, ttl) end
  end
  if fresh and width == 0 then finish_join(P, join, now, woken) end
  return i, bytes, math.max(width, 0)
end

-- Enqueues the body once all outcomes are in.
local function settle_join(P, join, now, woken)
  local v = redis.call('HMGET', P .. 'join:' .. join, 'state', 'width', 'more', 'done')
  if v[1] ~= 'open' or tonumber(v[2]) < 0 then return end
  if tonumber(v[4]) >= tonumber(v[2]) + tonumber(v[3]) then finish_join(P, join, now, woken) end
end

-- Counts one outcome, each index once; the last one enqueues the body.
local function part(P, join, index, outcome, now, woken)
  local key = P .. 'join:' .. join
  local v = redis.call('HMGET', key, 'state', 'width', 'more')
  if v[1] ~= 'open' or redis.call('HSETNX', key .. ':res', index, outcome) == 0 then return end
  local done = redis.call('HINCRBY', key, 'done', 1)
  if done == 1 then redis.call('PEXPIRE', key .. ':res', redis.call('PTTL', key)) end
  release(P, join, 1, now, woken)
  if tonumber(v[2]) >= 0 and done >= tonumber(v[2]) + tonumber(v[3]) then finish_join(P, join, now, woken) end
end

local function set_width(P, join, width, more, now, woken)
  local key = P .. 'join:' .. join
  if redis.call('EXISTS', key) == 0 then return end
  if more == '1' then
    redis.call('HINCRBY', key, 'more', width)
  else
    redis.call('HSET', key, 'width', width)
    settle_join(P, join, now, woken)
  end
end

-- Takes the next chunk of opened groups into their lane; called by `fetch` when a lane runs low.
local function spill(P, lane, now)
  local open = P .. 'open:' .. lane
  local group = redis.call('LINDEX', open, 0)
  if not group then return end
  local key = P .. 'group:' .. group
  local members = redis.call('LPOP', key, 200)
  if members then
    local woken = {}
    for _, bytes in ipairs(members) do put(P, unpack_message(bytes), now, woken) end
  end
  if redis.call('EXISTS', key) == 0 then redis.call('LPOP', open) end
end
