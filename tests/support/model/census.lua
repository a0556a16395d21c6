-- Where everything of a cell is at this moment; read whole, in one call, by tests only.
-- ARGV[1]  prefix      Returns  JSON, see census.py
local P = ARGV[1]

local function pairs_of(flat)
  local map = {}
  for k = 1, #flat, 2 do map[flat[k]] = flat[k + 1] end
  return map
end

-- Packed messages of a list, as {id, bytes packed, pool, lane}.
local function listed(key, place)
  local found = {}
  for k, bytes in ipairs(redis.call('LRANGE', key, 0, -1)) do
    local v = cmsgpack.unpack(bytes)
    found[k] = { v[place], #bytes, v[1], v[2] }
  end
  return found
end

local function each(pattern, place)
  local found = {}
  for _, key in ipairs(redis.call('KEYS', string.gsub(P, '{', '[{]') .. pattern)) do
    found[string.sub(key, #P + 1)] = listed(key, place)
  end
  return found
end

local out = { streams = {}, pending = {}, delayed = {}, letters = {}, runs = {} }
for _, lane in ipairs(redis.call('SMEMBERS', P .. 'lanes')) do
  for _, kind in ipairs({ 'r:', 's:' }) do
    local stream = P .. kind .. lane
    if redis.call('EXISTS', stream) == 1 then
      local entries = {}
      for k, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
        entries[k] = { entry[1], pairs_of(entry[2]).i }
      end
      out.streams[kind .. lane] = entries
      for _, one in ipairs(redis.call('XPENDING', stream, 'w', '-', '+', 1000)) do
        table.insert(out.pending, { stream, one[1], one[2] })
      end
    end
  end
end
local due = pairs_of(redis.call('ZRANGE', P .. 'delayed', 0, -1, 'WITHSCORES'))
for member, at in pairs(pairs_of(redis.call('ZRANGE', P .. 'retries:p', 0, -1, 'WITHSCORES'))) do
  if due[member] then error(member .. ' waits twice') end
  due[member] = at
end
for member, bytes in pairs(pairs_of(redis.call('HGETALL', P .. 'delayed:m'))) do
  local v = cmsgpack.unpack(bytes)
  table.insert(out.delayed, { v[3], #bytes, v[1], v[2], v[11] or '', due[member] or false,
    v[8] == 0 and v[9] == 0 and v[13] == 0 and v[11] == '' and not v[14], v[4], v[14] == 1, member })
  due[member] = nil
end
out.lost = {}
for member in pairs(due) do table.insert(out.lost, member) end
out.aside = each('aside:*', 3)
out.groups = each('group:*', 4)
out.staged = each('stage:*', 4)
out.behind = each('join:*:wait', 4)
for k, entry in ipairs(redis.call('XRANGE', P .. 'dead', '-', '+')) do
  local f = pairs_of(entry[2])
  out.letters[k] = { entry[1], f.i, #(f.h or '') + #(f.b or '') + #(f.why or '') }
end
for _, run in ipairs(redis.call('ZRANGE', P .. 'runs', 0, -1)) do
  out.runs[run] = pairs_of(redis.call('HGETALL', P .. 'run:' .. run))
end
for _, key in ipairs({ 'tenants', 'parked', 'paused', 'dead:n' }) do
  out[key] = pairs_of(redis.call('HGETALL', P .. key))
end
out.load = {}
for name, value in pairs(pairs_of(redis.call('HGETALL', P .. 'load:p'))) do
  if tonumber(value) then out.load[name] = value end
end
out.of_runs = {}
for _, key in ipairs(redis.call('KEYS', string.gsub(P, '{', '[{]') .. 'delayed:r:*')) do
  for _, member in ipairs(redis.call('SMEMBERS', key)) do
    table.insert(out.of_runs, { string.sub(key, #P + 11), member })
  end
end
out.ended = redis.call('SMEMBERS', P .. 'ended')
out.due = redis.call('ZRANGE', P .. 'due', 0, -1)
return cjson.encode(out)
