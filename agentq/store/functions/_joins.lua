-- Fan-ins, and the members of large groups that wait for a place in their lane.

local STAGE_TTL = 600000
local SPILLED = 200 -- members of an opened group, at most, that a call takes into their lane

-- In `woken`, beside the pools by name: how many more members each fan-in may queue. They are queued
-- once, at the end of a call, which may end members of many fan-ins.
local MEMBERS = 1

local function release(join, count, woken)
  local more = woken[MEMBERS] or {}
  woken[MEMBERS] = more
  more[join] = (more[join] or 0) + count
end

-- Queues members from the head of a list: `count` of them, or `limit` bytes. Returns how many, and the bytes.
local function queue_from(P, list, count, limit, now, woken)
  local queued, size, last = 0, 0, nil
  while queued < count and size < limit do
    local members = redis.call('LPOP', list, few(count - queued, last))
    if not members then break end
    last = 0
    for _, bytes in ipairs(members) do
      put(P, unpack_message(bytes), now, woken)
      last = last + #bytes
    end
    queued, size = queued + #members, size + last
  end
  return queued, size
end

-- Queues what `release` gathered, PIECE bytes of it, and of each fan-in one at least: with none under way
-- it would stand still. The others are owed (field `owed`), and come with the next outcomes.
local function queue_members(P, more, now, woken)
  local size = 0
  for join, count in pairs(more) do
    local key, most, limit = P .. 'join:' .. join, count, PIECE - size
    if limit <= 0 then most, limit = 1, 1 end
    local queued, bytes = queue_from(P, key .. ':wait', most, limit, now, woken)
    size = size + bytes
    if queued < count and bytes >= limit then redis.call('HINCRBY', key, 'owed', count - queued) end
  end
end

-- Ends a call: queues what fan-ins may queue, and wakes workers of the pools that have new work.
local function wake_all(P, woken, now)
  local more = woken[MEMBERS]
  woken[MEMBERS] = nil
  if more then queue_members(P, more, now, woken) end
  for pool, count in pairs(woken) do wake(P, pool, math.min(count, 16), now) end
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
  local run = redis.call('HGET', key, 'run')
  if run and run ~= '' then redis.call('SREM', P .. 'run:' .. run .. ':joins', join) end
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
    if run ~= '' then -- by which they are found when it ends, see `_ended`
      redis.call('SADD', P .. 'run:' .. run .. ':joins', join)
      redis.call('PEXPIRE', P .. 'run:' .. run .. ':joins', ttl)
    end
  end
  local waiting = key .. ':wait'
  if group then
    if fresh and redis.call('EXISTS', P .. 'stage:' .. group) == 1 then
      redis.call('RENAME', P .. 'stage:' .. group, waiting)
      redis.call('PEXPIRE', waiting, ttl)
      release(join, at_once, woken)
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
  local v = redis.call('HMGET', key, 'state', 'width', 'more', 'owed')
  if v[1] ~= 'open' or redis.call('HSETNX', key .. ':res', index, outcome) == 0 then return end
  local done = redis.call('HINCRBY', key, 'done', 1)
  if done == 1 then redis.call('PEXPIRE', key .. ':res', redis.call('PTTL', key)) end
  if v[4] then redis.call('HDEL', key, 'owed') end
  release(join, 1 + (v[4] or 0), woken)
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

-- Takes the next chunk of opened groups into their lane, until it has `limit` bytes; called by `fetch`
-- when a lane runs low. Returns the bytes.
local function spill(P, lane, now, limit)
  local open = P .. 'open:' .. lane
  local group = redis.call('LINDEX', open, 0)
  if not group then return 0 end
  local key = P .. 'group:' .. group
  local _, size = queue_from(P, key, SPILLED, limit, now, {})
  if redis.call('EXISTS', key) == 0 then redis.call('LPOP', open) end
  return size
end
