-- What a run leaves behind that ends: deliveries that are delayed (the set `delayed:r:<run>`), and fan-ins
-- with members that wait for a place (the set `run:<run>:joins`). They take no room of runs that go on:
-- `end_run` puts such a run into the set `ended`, where `promote` finds it and drops them by the piece.

local SLICE = 50 -- messages whose names are read at once

-- Drops up to `most` of what a run left, until it has read `limit` bytes, as a worker would that fetched
-- it. Returns how many, and the bytes. Cost: 10 us each.
local function drop_left(P, run, most, limit)
  local delayed = P .. 'delayed:r:' .. run
  local members = redis.call('SRANDMEMBER', delayed, math.min(SLICE, most))
  local found, done, size = undelay(P, members, limit)
  for _, one in ipairs(found) do
    for _, join in ipairs(joins_of(run, one[1])) do forget(P, join) end
  end
  if done > 0 then redis.call('SREM', delayed, unpack(members, 1, done)) end -- what is there no more too
  local joins = redis.call('SPOP', P .. 'run:' .. run .. ':joins', most - done)
  for _, join in ipairs(joins) do forget(P, join) end
  return done + #joins, size
end
