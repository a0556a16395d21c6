-- Stages members of a large group or fan-in; they become visible with the effect `open` or `join`.
-- KEYS[1]  prefix
-- ARGV[1]  group     id of the group; new at each attempt of the step that fans out
-- ARGV[2]  offset    how many members were staged before this chunk (a repeated chunk is ignored)
-- ARGV[3..] messages, at most 500 a call
-- Returns  members staged so far
-- On a full Redis: refused whole; as aq1_stage_started, for members of work that runs already,
-- allowed. Cost: about 3 us a member.
local function stage(keys, argv)
  local P = keys[1]
  local key = P .. 'stage:' .. argv[1]
  local length = redis.call('LLEN', key)
  if length ~= tonumber(argv[2]) then return length end
  local i = 3
  while i <= #argv do
    local m
    m, i = message_at(argv, i)
    redis.call('RPUSH', key, pack(m))
  end
  redis.call('PEXPIRE', key, STAGE_TTL)
  return redis.call('LLEN', key)
end

redis.register_function('aq1_stage', stage)
redis.register_function{ function_name = 'aq1_stage_started', callback = stage, flags = { 'allow-oom' } }
