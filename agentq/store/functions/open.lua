-- Makes staged members visible in one step, on their own (a producer's group or chord).
-- KEYS[1]  prefix
-- ARGV[1]  id        dedupe id of the group, or ""      ARGV[2]  dedupe_ms
-- ARGV[3]  pool      queue whose caps are checked, "" = none     ARGV[4]  lane
-- ARGV[5]  length    most messages in that lane         ARGV[6]  bytes     most of them together
-- ARGV[7]  count     how many messages there are
-- ARGV[8..] effects (`open`, `join`, `put`)
-- Returns  {"ok"} | {"dup"} | {"full", reason, there, limit, retry_ms}, see `enqueue`
-- On a full Redis: refused whole. Cost: O(1) for `open`; at_once messages for `join`.
local function open(keys, argv)
  local P, pool, lane = keys[1], argv[3], argv[4]
  local now = now_ms()
  if argv[1] ~= '' and redis.call('EXISTS', P .. 'id:' .. argv[1]) == 1 then return { 'dup' } end
  if pool ~= '' then
    local depth = redis.call('XLEN', P .. 's:' .. pool .. ':' .. lane)
    -- Groups that are not in the queue yet have taken their place in it all the same.
    for _, group in ipairs(redis.call('LRANGE', P .. 'open:' .. pool .. ':' .. lane, 0, 999)) do
      depth = depth + redis.call('LLEN', P .. 'group:' .. group)
    end
    local work = { depth = depth, more = math.max(0, tonumber(argv[7]) - 1),
      delayed = is_delayed(P, argv, 8, now), unfinished = 0, per_tenant = 0 }
    local refused = admit(P, pool, lane, work, tonumber(argv[5]), tonumber(argv[6]), now)
    if refused then return refused end
  end
  if argv[1] ~= '' then redis.call('SET', P .. 'id:' .. argv[1], '1', 'PX', argv[2]) end
  local woken = {}
  local failed = apply(P, argv, 8, #argv, now, woken)
  wake_all(P, woken, now)
  if failed then return failed end
  return { 'ok' }
end

redis.register_function('aq1_open', open)
