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

-- Three readers of `count` messages, one a kind of source: each adds them to `found`, and returns the
-- next cursor, "" behind the last, and their bytes. Of a hash the server gives whole buckets: some
-- more, and while a child of it saves, when it lets no hash grow, 20 and more.
local function look_at_delayed(P, cursor, count, found)
  local reply, size = redis.call('HSCAN', P .. 'delayed:m', cursor == '' and '0' or cursor, 'COUNT', count), 0
  for k = 1, #reply[2], 2 do
    local bytes = reply[2][k + 1]
    local f, pool, lane = unpacked(bytes)
    found[#found + 1] = { reply[2][k], f, pool, lane, #bytes }
    size = size + #bytes
  end
  return reply[1] == '0' and '' or reply[1], size
end

local function look_at_aside(list, cursor, count, found)
  local from, size = tonumber(cursor) or 0, 0
  local there = redis.call('LRANGE', list, from, from + count - 1)
  for _, bytes in ipairs(there) do
    local f, pool, lane = unpacked(bytes)
    found[#found + 1] = { bytes, f, pool, lane, #bytes }
    size = size + #bytes
  end
  return #there == count and tostring(from + count) or '', size
end

local function look_at_queue(stream, from, count, found, pool, lane)
  local there, size = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', count), 0
  for _, entry in ipairs(there) do
    local f = fields_of(entry)
    found[#found + 1] = { entry[1], f, pool, lane, #f.h + #f.b }
    size = size + #f.h + #f.b
  end
  return #there == count and there[count][1] or '', size
end

-- Looks at up to `most` messages of one source, or `limit` bytes, from a cursor on ("" the beginning):
-- "s:<pool>:<lane>" and "r:<pool>:<lane>", of which only what no worker holds, "delayed", "aside:<pause>".
-- Returns the next cursor, "" behind the last, and {{where in the source, fields, pool, lane, bytes}..}.
local function look(P, source, cursor, most, limit)
  -- With less room than PIECE it begins with one message: four large ones would be all of it.
  local found, size, last = {}, 0, limit < PIECE and PIECE or nil
  local pool, lane = string.match(source, '^[sr]:(.-):(.*)$')
  if pool then
    local read = last_read(P .. source)
    cursor = cursor == '' and read or later(cursor, read)
  end
  repeat
    local count = few(most - #found, last)
    if pool then
      cursor, last = look_at_queue(P .. source, cursor, count, found, pool, lane)
    elseif source == 'delayed' then
      cursor, last = look_at_delayed(P, cursor, count, found)
    else
      cursor, last = look_at_aside(P .. source, cursor, count, found)
    end
    size = size + last
  until cursor == '' or #found >= most or size >= limit
  return cursor, found
end
