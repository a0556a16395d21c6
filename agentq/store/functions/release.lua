-- Gives up a lease: what the process still held is handed out again at once, uncharged.
-- KEYS[1]  prefix
-- ARGV[1]  worker
-- ARGV[2]  charge    0 = it stopped in order, 1 = it died
-- ARGV[3]  limit     attempts before a message is dead      ARGV[4]  keep_ms
-- Returns  messages handed back; HANDED_BACK means: call again (it were so many, or PIECE bytes)
-- On a full Redis: allowed. Cost: 15 us a message; a call ends behind PIECE bytes.
local function release_lease(keys, argv)
  local count, more = hand_back(keys[1], argv[1], tonumber(argv[2]), 0, tonumber(argv[3]), tonumber(argv[4]), now_ms())
  return more and HANDED_BACK or count
end

redis.register_function{ function_name = 'aq1_release', callback = release_lease, flags = { 'allow-oom' } }
