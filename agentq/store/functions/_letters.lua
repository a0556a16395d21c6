-- Dead letters, and the end of what will not be tried again.
--
-- The letters are the stream `dead`. Beside it the hash `dead:n`:
--   bytes                                of all letters: reason, head and body
--   max_payload, max_number, max_bytes   the settings, as the last `promote` noted them
--   runs_keep                            runs.keep, noted likewise
--   trimmed:age, trimmed:number, trimmed:bytes   letters dropped because they were too old, many, large
--   died:<pool>:<lane>                   letters ever added; it never falls, so its growth is an alert
-- A letter that `purge` made of a step whose run went on has a field w: when that run began (field `at` of
-- its record), by which it is told from later runs of its key.

local DEAD_NUMBER, DEAD_BYTES, MAX_PAYLOAD = 10000, 67108864, 262144 -- until `promote` notes them
local SETTING = { age = 'dead.keep', number = 'dead.max_number', bytes = 'dead.max_bytes' } -- that it is for
local CUT = 65536
local TRIMMED = 20 -- letters a call trims
local REFERS = '"blob":' -- in the head of a message whose argument is in blob storage
local WEEK = 604800000 -- ms: runs.keep until `promote` notes it
local TEN_YEARS = 315360000000 -- ms; who sweeps blobs knows dead.keep, and deletes the key

local function letter_size(f) return #(f.why or '') + #f.h + #f.b end

-- Returns the name of a message's step or task; its id where its head does not say. The first "task" there
-- is it: to read a head as JSON costs 20 us.
local function step_of(f)
  return string.match(f.h, '"task":%s*"([^"\\]+)"') or f.i
end

-- Returns a failure as a run or a fan-in is told of it. Written out, since cjson would put the fields
-- in an order that differs between servers.
local function failure(kind, message, rest)
  return '{"kind":"' .. kind .. '","message":' .. cjson.encode(message) .. rest .. '}'
end

-- Takes a letter away; whoever takes one away does it here, so that the bytes are right.
local function take_letter(P, id, f)
  redis.call('XDEL', P .. 'dead', id)
  local bytes = redis.call('HINCRBY', P .. 'dead:n', 'bytes', -letter_size(f))
  if bytes < 0 then redis.call('HSET', P .. 'dead:n', 'bytes', 0) end
end

-- Whether the fan-in of a message takes its outcome no more.
local function is_counted(P, f)
  if f.j == '' then return false end
  local join, index = string.match(f.j, '^(.*)|(%d+)$')
  local open = redis.call('HGET', P .. 'join:' .. join, 'state') == 'open'
  return not open or redis.call('HEXISTS', P .. 'join:' .. join .. ':res', index) == 1
end

-- Returns when the run began that waits for a message, nil where none does.
local function waits_for(P, f)
  if f.r == '' or is_counted(P, f) then return nil end
  local record = redis.call('HMGET', P .. 'run:' .. f.r, 'state', 'at')
  return record[1] == 'running' and record[2] or nil
end

-- Drops a letter for good: the run that waits for it, since `purge` told it nothing, fails by that.
local function drop_letter(P, id, f, why)
  take_letter(P, id, f)
  if not f.w or waits_for(P, f) ~= f.w then return end
  local keep = tonumber(redis.call('HGET', P .. 'dead:n', 'runs_keep') or WEEK)
  local message = 'a step of it was purged, and its dead letter is dropped (' .. why .. ')'
  end_run(P, f.r, 'failed', failure('StepDropped', message, ',"step":' .. cjson.encode(step_of(f))), keep, now_ms())
end

-- Does `act(id, fields)` with each letter there is of ARGV and returns its answers, "gone" where there
-- is none; fewer than asked for once PIECE bytes were read.
local function with_letters(P, argv, act)
  local answers, read = {}, 0
  for k, id in ipairs(argv) do
    if read >= PIECE then break end
    local found = redis.call('XRANGE', P .. 'dead', id, id)
    local f = found[1] and fields_of(found[1])
    answers[k] = f and act(id, f) or 'gone'
    read = read + (f and letter_size(f) or 0)
  end
  return answers
end

-- Drops the oldest letter, where its id is not behind `last`, and counts it as dropped for `why`;
-- returns its bytes, nil where there is none.
local function trim(P, why, last)
  local entry = redis.call('XRANGE', P .. 'dead', '-', last, 'COUNT', 1)[1]
  if not entry then return nil end
  local f = fields_of(entry)
  drop_letter(P, entry[1], f, SETTING[why])
  redis.call('HINCRBY', P .. 'dead:n', 'trimmed:' .. why, 1)
  return letter_size(f)
end

-- Returns how many more letters there may be, and bytes of them; below 0 where there are too many.
local function letters_room(P)
  local v = redis.call('HMGET', P .. 'dead:n', 'max_number', 'max_bytes', 'bytes')
  local number = redis.call('XLEN', P .. 'dead')
  return tonumber(v[1] or DEAD_NUMBER) - number, tonumber(v[2] or DEAD_BYTES) - tonumber(v[3] or '0'), number
end

-- Drops the oldest letters where they are older than `oldest` (an id), too many or too large
-- together, a piece of them a call, in which `read` bytes were moved before; the newest stays.
local function trim_to_fit(P, read, oldest)
  for _ = 1, TRIMMED do
    if read >= PIECE then return end
    local number, bytes, there = letters_room(P)
    local dropped
    if number < 0 then
      dropped = trim(P, 'number', '+')
    elseif bytes < 0 and there > 1 then
      dropped = trim(P, 'bytes', '+')
    elseif oldest then
      dropped = trim(P, 'age', oldest)
    end
    read = read + (dropped or PIECE)
  end
end

-- Keeps a letter: whole up to broker.max_payload; of a larger one the beginning, which can not be
-- replayed (field c: how many bytes it had). The oldest make room for it. `waits`: field w, if there is one.
local function dead(P, reason, f, pool, lane, waits)
  local most = tonumber(redis.call('HGET', P .. 'dead:n', 'max_payload') or MAX_PAYLOAD)
  local h, b, cut, why = f.h, f.b, 0, string.sub(reason, 1, 1000)
  if #h > most or #b > most then
    h, b, cut = string.sub(h, 1, CUT), string.sub(b, 1, CUT), #h + #b
  end
  redis.call('XADD', P .. 'dead', '*', 'why', why, 'i', string.sub(f.i, 1, 1000), 'a', f.a, 'h', h, 'b', b,
    'n', f.n, 't', f.t, 'p', pool, 'l', lane, 'r', f.r, 'j', f.j, 'c', cut, unpack(waits and { 'w', waits } or {}))
  redis.call('HINCRBY', P .. 'dead:n', 'bytes', #why + #h + #b)
  redis.call('HINCRBY', P .. 'dead:n', 'died:' .. pool .. ':' .. lane, 1)
  if f.r ~= '' and string.find(f.h, REFERS, 1, true) then
    redis.call('SET', P .. 'blobs:kept:' .. f.r, now_ms(), 'PX', TEN_YEARS)
  end
  trim_to_fit(P, 0)
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
    local rest = ',"step":' .. cjson.encode(step_of(f)) .. ',"attempts":' .. f.a
    part(P, join, index, failure(kind, message, rest), now, woken)
  elseif f.r ~= '' then
    end_run(P, f.r, 'failed', failure(kind, message, ',"step":' .. cjson.encode(step_of(f))), keep, now)
  end
end
