-- The effects of a state change, as one function applies them.
--
-- Effects stand flat in ARGV, opcode first, and are applied in order by `apply`:
--   put    <message>                                      enqueue (or delay) one message
--   again  <message>                                      the same of a retry (`_retries`)
--   join   <join> <width> <at_once> <ttl_ms> <run> <bodies> <members> <body..> <member..>
--                                                         open a fan-in; members = "staged:.."
--                                                         takes what `stage` left under that id
--                                                         ("staged:<bytes of them>:<id>");
--                                                         width -1: told later by `width`
--   width  <join> <width> <more>                          how many outcomes a fan-in waits for, or
--                                                         with more = 1 how many beyond those
--   open   <group> <pool> <lane>                          make a staged group visible
--   part   <join> <index> <outcome>                       count one member's outcome
--   forget <join>                                         the body has read the outcomes
--   meta   <task> <ttl_ms> <document>                     store and announce a Celery result
--   event  <run> <type> <data>                            append to the run's events
--   end    <run> <state> <data> <keep_ms>                 end the run (once)
--   spend  <bytes>                                        charge what is kept outside to the run
--   dead   <reason> <task> <attempts> <headers> <body> <retries> <born_ms> <pool> <lane> <run> <join>
--                                                         keep a dead letter
-- Callers check before they call `apply`: nothing in it refuses, since Redis rolls nothing back.

local function always() return true end

-- Applies the effects in ARGV[i..n]; `woken` gathers which pools to wake (`wake_all`). `fits` says of
-- bytes and members whether the run may have them; `record`: see `end_run`. Returns an error or nil,
-- and both as they came.
local function apply(P, argv, i, n, now, woken, fits, record)
  local bytes, members = 0, 0
  while i <= n do
    local op = argv[i]
    i = i + 1
    if op == 'put' or op == 'again' then
      local m
      m, i = message_at(argv, i)
      bytes = bytes + #m.h + #m.b
      if op == 'again' then m.back = 1 end
      put(P, m, now, woken)
    elseif op == 'part' then
      bytes = bytes + #argv[i + 2]
      part(P, argv[i], argv[i + 1], argv[i + 2], now, woken)
      i = i + 3
    elseif op == 'meta' then
      meta(P, argv[i], argv[i + 1], argv[i + 2])
      i = i + 3
    elseif op == 'event' then
      local run = argv[i]
      if argv[i + 3] == 'end' and argv[i + 4] == run and i + 3 <= n then
        end_run(P, run, argv[i + 5], argv[i + 6], tonumber(argv[i + 7]), now, argv[i + 1], argv[i + 2], record)
        i = i + 8
      else
        event(P, run, argv[i + 1], argv[i + 2])
        i = i + 3
      end
    elseif op == 'join' then
      local more, wide
      i, more, wide = open_join(P, argv, i, now, woken, fits or always)
      bytes, members = bytes + more, members + wide
    elseif op == 'width' then
      set_width(P, argv[i], argv[i + 1], argv[i + 2], now, woken)
      i = i + 3
    elseif op == 'open' then
      local group, pool, lane = argv[i], argv[i + 1], argv[i + 2]
      if redis.call('EXISTS', P .. 'stage:' .. group) == 1 then
        redis.call('RENAME', P .. 'stage:' .. group, P .. 'group:' .. group)
        redis.call('PERSIST', P .. 'group:' .. group)
        redis.call('RPUSH', P .. 'open:' .. pool .. ':' .. lane, group)
        ensure(P, 's:', pool .. ':' .. lane)
        woken[pool] = (woken[pool] or 0) + 16
      end
      i = i + 3
    elseif op == 'forget' then
      forget(P, argv[i])
      i = i + 1
    elseif op == 'end' then
      end_run(P, argv[i], argv[i + 1], argv[i + 2], tonumber(argv[i + 3]), now, nil, nil, record)
      i = i + 4
    elseif op == 'dead' then
      dead(P, argv[i], { i = argv[i + 1], a = argv[i + 2], h = argv[i + 3], b = argv[i + 4], n = argv[i + 5],
        t = argv[i + 6], r = argv[i + 9], j = argv[i + 10] }, argv[i + 7], argv[i + 8])
      record = nil -- a letter that made room may have ended the run
      i = i + 11
    elseif op == 'spend' then
      bytes = bytes + tonumber(argv[i])
      i = i + 1
    else
      return redis.error_reply('AQ unknown effect ' .. tostring(op))
    end
  end
  return nil, bytes, members
end
