-- Pauses a pool, step, flow or tenant: `fetch` hands out nothing of it from now on.
-- KEYS[1]  prefix
-- ARGV[1]  pause     "pool:<name>" | "step:<task>" | "flow:<name>" | "tenant:<name>"
-- Returns  1 = paused by this call, 0 = was paused
-- On a full Redis: allowed. Cost: 2 us.
local function pause(keys, argv)
  local key, now = keys[1] .. 'paused', now_ms()
  local since = redis.call('HGET', key, argv[1])
  if since and string.sub(since, 1, 1) ~= '-' then return 0 end
  redis.call('HSET', key, argv[1], since and string.sub(since, 2) or now)
  return 1
end

redis.register_function{ function_name = 'aq1_pause', callback = pause, flags = { 'allow-oom' } }
