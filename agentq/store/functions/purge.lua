-- Moves what waits and fits a filter into the dead letters, one piece of one source a call. Runs and
-- fan-ins are told nothing: a letter can be replayed, and its run goes on. It fails once the letter is dropped.
-- KEYS[1]  prefix
-- ARGV[1]  source    "s:<pool>:<lane>" | "r:<pool>:<lane>" | "delayed" | "aside:<pause>"
-- ARGV[2]  cursor    "" at first, then what the call before returned
-- ARGV[3]  most      messages looked at, at most 200
-- ARGV[4]  reason
-- ARGV[5]  pool      ARGV[6] lane    ARGV[7] step    ARGV[8] flow    ARGV[9] tenant; "" = any
-- ARGV[10] before    only what was enqueued before this, ms; negative: minus that many ms ago
-- Returns  {next cursor or "" behind the last, messages moved, 1 = the dead letters are full}
-- On a full Redis: allowed (moves, does not add). Cost: 15 us a message; a call ends behind half of PIECE bytes.
local function purge(keys, argv)
  local P, source, now, moved = keys[1], argv[1], now_ms(), 0
  local limit = PIECE / 2 -- each is read, and written as a letter
  if string.match(source, '^s:') then limit = limit - spill(P, string.sub(source, 3), now, limit / 2) end
  local before = tonumber(argv[10])
  if before < 0 then before = now + before end
  local cursor, found = look(P, source, argv[2], tonumber(argv[3]), limit)
  local room, bytes = letters_room(P)
  local function fits(f, pool, lane)
    if argv[5] ~= '' and argv[5] ~= pool then return false end
    if argv[6] ~= '' and argv[6] ~= lane then return false end
    if before > 0 and f.t >= before then return false end
    if argv[7] == '' and argv[8] == '' and argv[9] == '' then return true end
    local step, flow, tenant = labels_of(P, f)
    return (argv[7] == '' or argv[7] == step) and (argv[8] == '' or argv[8] == flow)
      and (argv[9] == '' or argv[9] == tenant)
  end
  for _, one in ipairs(found) do
    local place, f, pool, lane, there = one[1], one[2], one[3], one[4], true
    if fits(f, pool, lane) then
      local size = #argv[4] + #f.h + #f.b
      if room <= 0 or bytes < size then return { argv[2], moved, 1 } end
      if source == 'delayed' then
        there = take_delayed(P, place, f, pool, lane, one[5]) -- two looks may show one twice
      elseif string.match(source, '^aside:') then
        take_aside(P, P .. source, place, pool, lane)
      else
        redis.call('XDEL', P .. source, place)
      end
      if there then
        dead(P, argv[4], f, pool, lane, waits_for(P, f))
        moved, room, bytes = moved + 1, room - 1, bytes - size
      end
    end
  end
  if cursor ~= '' and string.match(source, '^aside:') then cursor = tostring(tonumber(cursor) - moved) end
  if cursor == '' and string.match(source, '^s:') and redis.call('EXISTS', P .. 'open:' .. string.sub(source, 3)) == 1 then
    cursor = found[#found] and found[#found][1] or '0-0' -- there is more of an opened group
  end
  return { cursor, moved, 0 }
end

redis.register_function{ function_name = 'aq1_purge', callback = purge, flags = { 'allow-oom' } }
