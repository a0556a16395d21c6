-- Dead letters, and the end of what will not be tried again.

local DEAD_KEPT = 10000
local DEAD_BYTES = 65536
local MAX_PAYLOAD = 262144
local REFERS = '"blob":' -- in the head of a message whose argument is in blob storage
local TEN_YEARS = 315360000000 -- ms; who sweeps blobs knows dead.keep, and deletes the key

-- Keeps a letter: whole up to broker.max_payload (`promote` notes it); of a larger one the beginning,
-- which can not be replayed (field c: how many bytes it had).
local function dead(P, reason, f, pool, lane)
  local most = tonumber(redis.call('GET', P .. 'payload') or MAX_PAYLOAD)
  local h, b, cut = f.h, f.b, 0
  if #h > most or #b > most then
    h, b, cut = string.sub(h, 1, DEAD_BYTES), string.sub(b, 1, DEAD_BYTES), #h + #b
  end
  redis.call('XADD', P .. 'dead', 'MAXLEN', DEAD_KEPT, '*', 'why', string.sub(reason, 1, 1000),
    'i', string.sub(f.i, 1, 1000), 'a', f.a, 'h', h, 'b', b, 'n', f.n, 't', f.t, 'p', pool, 'l', lane,
    'r', f.r, 'j', f.j, 'c', cut)
  if f.r ~= '' and string.find(f.h, REFERS, 1, true) then
    redis.call('SET', P .. 'blobs:kept:' .. f.r, now_ms(), 'PX', TEN_YEARS)
  end
end

-- Returns a failure as a run or a fan-in is told of it. Written out, since cjson would put the fields
-- in an order that differs between servers.
local function failure(kind, message, rest)
  return '{"kind":"' .. kind .. '","message":' .. cjson.encode(message) .. rest .. '}'
end

-- Ends what will not be tried again: its result, its fan-in or its run get an error of that kind,
-- and it is kept as a dead letter.
local function give_up(P, f, pool, lane, kind, message, keep, now, woken)
  meta(P, f.i, 86400000, '{"status":"FAILURE","result":{"exc_type":"' .. kind ..
    '","exc_message":[' .. cjson.encode(message) .. '],"exc_module":"agentq.errors"}' ..
    ',"traceback":null,"children":[],"task_id":' .. cjson.encode(f.i) .. '}')
  dead(P, message, f, pool, lane)
  if f.j ~= '' then
    local join, index = string.match(f.j, '^(.*)|(%d+)$')
    part(P, join, index, failure(kind, message, ',"step":"","attempts":' .. f.a), now, woken)
  elseif f.r ~= '' then
    end_run(P, f.r, 'failed', failure(kind, message, ',"step":' .. cjson.encode(f.i)), keep, now)
  end
end
