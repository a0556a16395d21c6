-- What a run leaves behind that ends: deliveries that are delayed (the set `delayed:r:<run>`), and fan-ins
-- with members that wait for a place (the set `run:<run>:joins`). They take no room of runs that go on:
-- `end_run` puts such a run into the set `ended`, where `promote` finds it and drops them by the piece.
-- Where nobody did for all of runs.keep, the next run of that key does it: it begins behind them.

local SLICE = 50 -- messages whose names are read at once
local BEFORE = 200 -- at most, by the call that begins the next run

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

-- Whether a run of this id is there. Where only its rest is, a piece of that is dropped; returns also
-- how much is left.
local function is_there(P, run)
  local key, delayed = P .. 'run:' .. run, P .. 'delayed:r:' .. run
  if redis.call('EXISTS', key, delayed, key .. ':joins') == 0 then return false, 0 end
  if redis.call('EXISTS', key) == 1 then return true, 0 end
  local dropped, bytes, done, size = 0, 0, 0, 0
  repeat
    done, size = drop_left(P, run, BEFORE - dropped, PIECE / 2 - bytes)
    dropped, bytes = dropped + done, bytes + size
  until done == 0 or dropped >= BEFORE or bytes >= PIECE / 2
  return false, redis.call('SCARD', delayed) + redis.call('SCARD', key .. ':joins')
end
