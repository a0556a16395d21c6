-- Ends several deliveries of one worker, each as `complete` would: all of one, or nothing of it.
-- KEYS[1]  prefix
-- ARGV     for each: how many arguments follow, then the arguments of `complete`
-- Returns  an answer of `complete` for each
-- On a full Redis: allowed. Cost: 10-20 us each; the caller keeps a call under 5 ms.
local function complete_many(keys, argv)
  local P, now, woken, spent = keys[1], now_ms(), {}, {}
  local answers, ended, i, read = {}, {}, 1, 0
  while i <= #argv do
    local n, stream = i + tonumber(argv[i]), argv[i + 1]
    local answer, bytes = complete_one(P, argv, i + 1, n, now, woken, spent, read)
    read = read + (bytes or 0)
    if stream ~= '' and answer ~= 'stale' then ended[stream] = (ended[stream] or 0) + 1 end
    answers[#answers + 1] = answer
    i = n + 1
  end
  charge(P, spent, now)
  drained(P, ended)
  wake_all(P, woken, now)
  return answers
end

redis.register_function{ function_name = 'aq1_complete_many', callback = complete_many, flags = { 'allow-oom' } }
