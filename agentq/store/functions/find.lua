-- Looks for the messages of one run among those of one source that wait.
-- KEYS[1]  prefix
-- ARGV[1]  source    as `purge` takes it
-- ARGV[2]  cursor    "" at first, then what the call before returned
-- ARGV[3]  most      messages looked at, at most 500
-- ARGV[4]  run
-- Returns  {next cursor or "" behind the last, messages looked at,
--           {{place among these from 0, where in the source, task id, step, pool, lane, retries,
--             enqueued ms, what no worker has, join}..}}
-- On a full Redis: allowed. Cost: 2 us a message; a call ends behind PIECE bytes.
local function find(keys, argv)
  local P, hits = keys[1], {}
  local cursor, found = look(P, argv[1], argv[2], tonumber(argv[3]), PIECE)
  for k, one in ipairs(found) do
    local f = one[2]
    if f.r == argv[4] then
      local step = labels_of(P, f)
      hits[#hits + 1] = { k - 1, one[1], f.i, step, one[3], one[4], f.n, f.t, f.unknown or '', f.j }
    end
  end
  return { cursor, #found, hits }
end

redis.register_function{ function_name = 'aq1_find', callback = find, flags = { 'no-writes', 'allow-oom' } }
