-- Moves dead letters back into their queues, as new: no delay, no attempts charged, and no expiry:
-- one that has passed would end it again.
-- KEYS[1]  prefix
-- ARGV[1..] letters (ids of the stream `dead`), at most 100
-- Returns  for each: "ok" | "gone": replayed or dropped before | "cut": not whole |
--          "nowhere": its queue is not known | "ended": its run has ended | "counted": its fan-in
--          has its outcome or has ended. Fewer answers than letters: call again with the rest
-- On a full Redis: allowed (moves, does not add). Cost: 10 us each, and 1 us a KB.
local function replay_one(P, id, f, woken)
  if (f.c or '0') ~= '0' then return 'cut' end
  if (f.p or '') == '' or (f.l or '') == '' then return 'nowhere' end
  if f.r ~= '' and redis.call('HGET', P .. 'run:' .. f.r, 'state') ~= 'running' then return 'ended' end
  if is_counted(P, f) then return 'counted' end
  -- The first there is: what a head nests stands behind it, and in a text the quotes are escaped.
  local head = string.gsub(f.h, '"expires":"[^"]*"', '"expires":null', 1)
  add(P, 's:', { pool = f.p, lane = f.l, id = f.i, run = f.r, join = f.j, h = head, b = f.b }, 0, 0, 0)
  take_letter(P, id, f)
  woken[f.p] = (woken[f.p] or 0) + 1
  return 'ok'
end

local function replay(keys, argv)
  local P, woken = keys[1], {}
  local answers = with_letters(P, argv, function(id, f) return replay_one(P, id, f, woken) end)
  wake_all(P, woken, now_ms())
  return answers
end

redis.register_function{ function_name = 'aq1_replay', callback = replay, flags = { 'allow-oom' } }
