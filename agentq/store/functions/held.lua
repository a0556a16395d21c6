-- Lists what is pending under a worker's name: after a cut link a fetch may have been answered into
-- the void, and the worker compares this with what it has in its hands.
-- KEYS[1]  prefix
-- ARGV[1]  worker
-- Returns  {{lane, stream, id}..}, lane as "<pool>:<lane>", all of them: what is left out would
--          be lost to the worker for as long as it lives
-- On a full Redis: allowed. Cost: 1 us an entry.
local function held(keys, argv)
  local P = keys[1]
  local out = {}
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
    for _, kind in ipairs({ 'r:', 's:' }) do
      local stream = P .. kind .. lane
      if redis.call('EXISTS', stream) == 1 then
        local from = '-'
        repeat
          local pending = redis.call('XPENDING', stream, GROUP, from, '+', 1000, argv[1])
          for _, entry in ipairs(pending) do out[#out + 1] = { lane, stream, entry[1] } end
          from = pending[1] and '(' .. pending[#pending][1]
        until #pending < 1000
      end
    end
  end
  return out
end

redis.register_function{ function_name = 'aq1_held', callback = held, flags = { 'no-writes', 'allow-oom' } }
