-- The end of a delivery, within the budget of its run. Field `budget` of a run's record: "<members>
-- <bytes> <bytes of the first message>", as it was admitted; fields `members` and `bytes` count what
-- it used since: the members of its fan-outs; its messages and the outcomes of their members.
--
-- `spent` gathers what the runs use in one call, run -> {bytes, members, budget, keep_ms}.

local function budget_of(text)
  local members, bytes, first = string.match(text, '^(%d+) (%d+) (%d+)$')
  return tonumber(members), tonumber(bytes), tonumber(first)
end

-- Returns whether a run may have so many more bytes and members.
local function may_have(P, run, s, bytes, members)
  local most, most_bytes, first = budget_of(s[3])
  local used = redis.call('HMGET', P .. 'run:' .. run, 'bytes', 'members')
  return first + tonumber(used[1] or '0') + s[1] + bytes <= most_bytes
    and tonumber(used[2] or '0') + s[2] + members <= most
end

-- Tells why no result of a run is accepted any more: "ended", "late" (behind its deadline), or false.
local function over_already(record, now)
  if record[1] ~= 'running' then return 'ended' end
  local deadline = tonumber(record[2] or '0')
  return deadline > 0 and now > deadline and 'late'
end

-- Returns the fan-ins of its run that a message stands in: as a member (field j), as the body (its header).
local function joins_of(run, f)
  local names = {}
  local function name(join)
    if type(join) == 'string' and string.sub(join, 1, #run) == run then names[#names + 1] = join end
  end
  name(string.match(f.j, '^(.+)|'))
  local read, head = pcall(cjson.decode, f.h)
  local ours = read and type(head) == 'table' and type(head.headers) == 'table' and head.headers.aq
  if type(ours) == 'table' then name(ours.join) end
  return names
end

-- Ends one delivery with its effects: ARGV[i..n] = stream, entry, run, keep_ms, effects; `read`: bytes
-- of messages that this call read before. Returns what `complete` does, and the bytes that it read.
local function complete_one(P, argv, i, n, now, woken, spent, read)
  local stream, run = argv[i], argv[i + 2]
  local s, record = nil, run ~= '' and read_run(P, run) or nil
  local over = record and over_already(record, now)
  -- Nobody waits for the fan-ins of a run that is over: not even for what of them was held back. Behind
  -- PIECE bytes they are left to their time to live, where no other member of them comes by.
  local found = over and stream ~= '' and read < PIECE
    and redis.call('XRANGE', stream, argv[i + 1], argv[i + 1])[1]
  local f = found and fields_of(found)
  local joins = f and joins_of(run, f) or {}
  if stream ~= '' and not settle(stream, argv[i + 1]) then return 'stale' end
  if over then
    for _, join in ipairs(joins) do forget(P, join) end
    if over == 'late' then end_run(P, run, 'expired', 'null', tonumber(argv[i + 3]), now, nil, nil, record) end
    return over, f and #f.h + #f.b or 0
  end
  if record and record[4] then s = spent[run] or { 0, 0, record[4], tonumber(argv[i + 3]) } end
  local fits = s and function(bytes, members) return may_have(P, run, s, bytes, members) end
  local failed, bytes, members = apply(P, argv, i + 4, n, now, woken, fits, record)
  if failed then return failed end
  if s and bytes > 0 then
    s[1], s[2] = s[1] + bytes, s[2] + members
    spent[run] = s
  end
  return 'ok'
end

local function too_large(P, run, message, keep, now)
  end_run(P, run, 'failed', failure('RunTooLarge', message, ',"step":""'), keep, now)
end

-- Charges what was spent, one write a run and one more where it fanned out. A run that used more
-- than it has fails: its steps that wait or run are refused, as those of any ended run.
local function charge(P, spent, now)
  for run, s in pairs(spent) do
    local most, most_bytes, first = budget_of(s[3])
    local key = P .. 'run:' .. run
    local bytes = first + redis.call('HINCRBY', key, 'bytes', s[1])
    local members = s[2] > 0 and redis.call('HINCRBY', key, 'members', s[2]) or 0
    if members > most then
      too_large(P, run, string.format('its fan-outs together have %d members; runs.max_members ' ..
        '(or max_members= of the flow) is %d: split the work over several runs or raise it', members, most), s[4], now)
    elseif bytes > most_bytes then
      too_large(P, run, string.format('its messages and outcomes together are %d bytes; runs.max_bytes ' ..
        '(or max_bytes= of the flow) is %d: pass references or raise it', bytes, most_bytes), s[4], now)
    end
  end
end
