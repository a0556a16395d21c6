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

-- Ends one delivery with its effects: ARGV[i..n] = stream, entry, run, keep_ms, effects. See
-- `complete` for what it returns.
local function complete_one(P, argv, i, n, now, woken, spent)
  local stream, run = argv[i], argv[i + 2]
  if stream ~= '' and not settle(stream, argv[i + 1]) then return 'stale' end
  local s, record
  if run ~= '' then
    record = read_run(P, run)
    if record[1] ~= 'running' then return 'ended' end
    local deadline = tonumber(record[2] or '0')
    if deadline > 0 and now > deadline then
      end_run(P, run, 'expired', 'null', tonumber(argv[i + 3]), now, nil, nil, record)
      return 'late'
    end
    if record[4] then s = spent[run] or { 0, 0, record[4], tonumber(argv[i + 3]) } end
  end
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
