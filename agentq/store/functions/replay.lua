-- Moves dead letters back into their queues, as new: no delay, no attempts charged.
-- KEYS[1]  prefix
-- ARGV[1..] letters (ids of the stream `dead`), at most 100
-- Returns  for each: "ok" | "gone": replayed or dropped before | "cut": not whole |
--          "nowhere": its queue is not known | "ended": its run has ended | "counted": its fan-in
--          has its outcome or has ended
-- On a full Redis: allowed (moves, does not add). Cost: 10 us each, and 1 us a KB.
local function replay_one(P, id, woken)
  local found = redis.call('XRANGE', P .. 'dead', id, id)
  if not found[1] then return 'gone' end
  local f = fields_of(found[1])
  if (f.c or '0') ~= '0' then return 'cut' end
  if (f.p or '') == '' or (f.l or '') == '' then return 'nowhere' end
  if f.r ~= '' and redis.call('HGET', P .. 'run:' .. f.r, 'state') ~= 'running' then return 'ended' end
  if f.j ~= '' then
    local join, index = string.match(f.j, '^(.*)|(%d+)$')
    local open = redis.call('HGET', P .. 'join:' .. join, 'state') == 'open'
    if not open or redis.call('HEXISTS', P .. 'join:' .. join .. ':res', index) == 1 then return 'counted' end
  end
  add(P, 's:', { pool = f.p, lane = f.l, id = f.i, run = f.r, join = f.j, h = f.h, b = f.b }, 0, 0, 0)
  redis.call('XDEL', P .. 'dead', id)
  woken[f.p] = (woken[f.p] or 0) + 1
  return 'ok'
end

local function replay(keys, argv)
  local P, woken, answers = keys[1], {}, {}
  for k, id in ipairs(argv) do answers[k] = replay_one(P, id, woken) end
  wake_all(P, woken, now_ms())
  return answers
end

redis.register_function{ function_name = 'aq1_replay', callback = replay, flags = { 'allow-oom' } }
