-- Makes staged members visible in one step, on their own (a producer's group or chord).
-- KEYS[1]  prefix
-- ARGV[1]  id        dedupe id of the group, or ""      ARGV[2]  dedupe_ms
-- ARGV[3..] effects (`open`, `join`)
-- Returns  {"ok"} | {"dup"}
-- On a full Redis: refused whole. Cost: O(1) for `open`; at_once messages for `join`.
local function open(keys, argv)
  local P = keys[1]
  if argv[1] ~= '' and not redis.call('SET', P .. 'id:' .. argv[1], '1', 'NX', 'PX', argv[2]) then
    return { 'dup' }
  end
  local now = now_ms()
  local woken = {}
  local failed = apply(P, argv, 3, #argv, now, woken)
  wake_all(P, woken, now)
  if failed then return failed end
  return { 'ok' }
end

redis.register_function('aq1_open', open)
