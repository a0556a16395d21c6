-- What is known of a message without running it, and how what waits is set aside and looked through.
--
-- A pause is a field of `paused`: "pool:<name>", "step:<task>", "flow:<name>" or "tenant:<name>";
-- its value is when it began, ms, with "-" before it once it is being lifted. What fetches meet of
-- a paused step, flow or tenant they put aside (`_beside`).

local HEAD_READ = 65536

-- Returns step, flow and tenant of a message, "" where it has none.
local function labels_of(P, f)
  local step, flow, tenant = '', '', ''
  local ok, head = pcall(cjson.decode, #f.h <= HEAD_READ and f.h or '')
  local headers = ok and type(head) == 'table' and head.headers
  if type(headers) == 'table' then
    if type(headers.task) == 'string' then step = headers.task end
    if type(headers.aq) == 'table' and type(headers.aq.flow) == 'string' then flow = headers.aq.flow end
  end
  if f.r ~= '' then tenant = redis.call('HGET', P .. 'run:' .. f.r, 'tenant') or '' end
  return step, flow, tenant
end

-- Returns the pauses as {kind, name, its text, whether it is being lifted, whether a head that has
-- it must hold its name as it is}, nil where nothing is paused.
local function pauses(P)
  local flat = redis.call('HGETALL', P .. 'paused')
  if #flat == 0 then return nil end
  local found = {}
  for k = 1, #flat, 2 do
    local kind, name = string.match(flat[k], '^(%a+):(.*)$')
    found[#found + 1] = { kind = kind, name = name, text = flat[k],
      ending = string.sub(flat[k + 1], 1, 1) == '-', plain = not string.find(name, '[^%w_.:-]') }
  end
  return found
end

local function pool_is_paused(paused, pool)
  for _, pause in ipairs(paused or {}) do
    if pause.kind == 'pool' and pause.name == pool and not pause.ending then return true end
  end
  return false
end

-- Returns the pause that stops a message. While one is being lifted, only what came back from its
-- list (the returned stream) passes, so that nothing overtakes it. Reading a head costs 20 us, so it
-- is read only where the name is found in it.
local function stopped_by(P, f, paused, returned)
  local labels
  for _, pause in ipairs(paused) do
    if pause.kind ~= 'pool' and not (pause.ending and returned)
      and (pause.kind == 'tenant' or not pause.plain or string.find(f.h, pause.name, 1, true)) then
      if not labels then
        local step, flow, tenant = labels_of(P, f)
        labels = { step = step, flow = flow, tenant = tenant }
      end
      if labels[pause.kind] == pause.name then return pause.text end
    end
  end
end

local function order_of(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(seq)
end

local function later(a, b)
  local a1, a2 = order_of(a)
  local b1, b2 = order_of(b)
  if a1 > b1 or (a1 == b1 and a2 > b2) then return a end
  return b
end

local function last_read(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if not groups or groups.err or not groups[1] then return '0-0' end
  local flat = groups[1]
  for k = 1, #flat, 2 do
    if flat[k] == 'last-delivered-id' then return flat[k + 1] end
  end
  return '0-0'
end

-- Looks at up to `most` messages of one source from a cursor on ("" the beginning): "s:<pool>:<lane>"
-- and "r:<pool>:<lane>", of which only what no worker holds, "delayed", "aside:<pause>".
-- Returns the next cursor, "" behind the last, and {{where in the source, fields, pool, lane}..}.
local function look(P, source, cursor, most)
  local found, key = {}, P .. source
  if source == 'delayed' then
    local reply = redis.call('HSCAN', P .. 'delayed:m', cursor == '' and '0' or cursor, 'COUNT', most)
    for k = 1, #reply[2], 2 do
      local f, pool, lane = unpacked(reply[2][k + 1])
      found[#found + 1] = { reply[2][k], f, pool, lane }
    end
    return reply[1] == '0' and '' or reply[1], found
  end
  if string.sub(source, 1, 6) == 'aside:' then
    local from = tonumber(cursor) or 0
    for k, bytes in ipairs(redis.call('LRANGE', key, from, from + most - 1)) do
      local f, pool, lane = unpacked(bytes)
      found[k] = { bytes, f, pool, lane }
    end
    return #found == most and tostring(from + most) or '', found
  end
  local pool, lane = string.match(source, '^%a:(.-):(.*)$')
  local from = last_read(key)
  if cursor ~= '' then from = later(cursor, from) end
  for k, entry in ipairs(redis.call('XRANGE', key, '(' .. from, '+', 'COUNT', most)) do
    found[k] = { entry[1], fields_of(entry), pool, lane }
  end
  return #found == most and found[most][1] or '', found
end
