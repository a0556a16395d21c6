-- A delivery in the hands of a worker: ended, read, handed back.

local HANDED_BACK = 250 -- at most, by one call: 15 us each; of large ones PIECE bytes

-- Ends a delivery: true where this worker still owned it. The entry's id is the fence, since every
-- hand-over to another worker is a new entry; an acked entry can not be acked again.
local function settle(stream, entry)
  if redis.call('XACK', stream, GROUP, entry) == 0 then return false end
  redis.call('XDEL', stream, entry)
  return true
end

-- Tells a run of an attempt that died with its process, in the shape of a step's event; the worker without
-- its start's mark. `deaths`: those charged, this one included; given up after `limit`.
local function tell_lost(P, f, pending, charge, deaths, limit, now)
  if redis.call('HGET', P .. 'run:' .. f.r, 'state') ~= 'running' then return end
  local queued = tonumber(string.match(pending[1], '^(%d+)'))
  local start = math.max(queued, now - pending[3])
  local who = ',"worker":' .. cjson.encode(string.match(pending[2], '^[^#]*'))
  event(P, f.r, 'lost', '{"step":' .. cjson.encode(step_of(f)) .. ',"task":' .. cjson.encode(f.i) .. who ..
    string.format(',"core":"-","state":"lost","attempt":%d,"start":%d,"waited":%d,"ran":%d,' ..
      '"charged":%d,"deaths":%d,"limit":%d}', f.a + f.s + f.n + 1, start, start - queued, math.max(0, now - start),
      charge, deaths, limit))
end

-- Moves what is pending of a stream, as XPENDING lists it, to where it is handed out again; dead after
-- `limit` attempts. `charge`: 1 = counts as an attempt; `suspect`: 1 = it may be what its process died of.
-- Returns its bytes.
local function give_back(P, lane, stream, pending, charge, suspect, limit, keep, now, woken)
  local entry = pending[1]
  local found = redis.call('XRANGE', stream, entry, entry)
  if not found[1] then
    redis.call('XACK', stream, GROUP, entry)
    return 0
  end
  local f = fields_of(found[1])
  local attempts, suspected = f.a + charge, f.s + suspect
  local pool, name = string.match(lane, '^(.-):(.*)$')
  if charge + suspect > 0 then count(P, 'step:' .. step_of(f) .. '|lost') end
  if f.r ~= '' and charge + suspect > 0 then tell_lost(P, f, pending, charge, attempts, limit, now) end
  -- What has no run and no join may stand in a chain or chord that only its header knows: it is
  -- handed out once more, for a worker to fail it as Celery does. Past that it is given up here.
  local most = (f.j == '' and f.r == '') and limit + 1 or limit
  if attempts >= most then
    local message = 'its worker died ' .. attempts .. ' times while it ran'
    f.a = attempts
    give_up(P, f, pool, name, 'WorkerLost', message, keep, now, woken)
  else
    add(P, 'r:', { pool = pool, lane = name, id = f.i, run = f.r, join = f.j, h = f.h, b = f.b,
      s = suspected > 0 and suspected or nil }, attempts, f.n, f.t)
    woken[pool] = (woken[pool] or 0) + 1
  end
  redis.call('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
  return #f.h + #f.b
end

-- Empties one worker's hands: its pending entries are handed out again, then its lease is gone.
-- Returns how many were, and whether there may be more: then the lease is still there.
local function hand_back(P, worker, charge, suspect, limit, keep, now)
  local woken, count, size = {}, 0, 0
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. lane
      if redis.call('EXISTS', stream) == 1 then
        local pending = redis.call('XPENDING', stream, GROUP, '-', '+', HANDED_BACK - count, worker)
        for _, entry in ipairs(pending) do
          size = size + give_back(P, lane, stream, entry, charge, suspect, limit, keep, now, woken)
          count = count + 1
          if size >= PIECE then break end
        end
        if count >= HANDED_BACK or size >= PIECE then
          wake_all(P, woken, now)
          return count, true
        end
        -- Only here: deleting a consumer drops what is pending under its name.
        redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, worker)
      end
    end
  end
  redis.call('ZREM', P .. 'workers', worker)
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    redis.call('ZREM', P .. 'idle:' .. string.match(lane, '^(.-):'), worker)
  end
  redis.call('DEL', P .. 'worker:' .. worker, P .. 'wake:' .. worker)
  wake_all(P, woken, now)
  return count, false
end
