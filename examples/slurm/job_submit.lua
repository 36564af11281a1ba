--[[
job_submit.lua: tell users what their job is expected to use, and tag it.

Slurm's controller runs this for every job that is submitted (JobSubmitPlugins=lua, this file next to
slurm.conf). For jobs that ask for GPUs it asks `wattloop serve --cluster FILE` what to expect, prints
the answer to the user and writes it into AdminComment:

    wattloop:{"predicted_j":4320000,"predicted_s":7800,"predicted_by":"comment"}

It never holds a job back: whatever goes wrong here, the job is submitted as it is. The controller
waits while this runs, so everything is bounded: one question takes BOUND_S at most, a service that
did not answer is left alone for REST_S, and the same question within KEEP_S is not asked twice.

What users write reaches the service as data in a file, never as words of a command.
--]]

local URL = "http://127.0.0.1:8765/api/v1/predict/submit"
local HEADER_FILE = "" -- a file with "Authorization: Bearer TOKEN", readable by SlurmUser only
local BOUND_S = 0.5
local REST_S = 60
local KEEP_S = 60
local MOST_KEPT = 500
local LONGEST = 4096 -- characters of a text that are sent; a longer comment is not looked at

local MARK = "wattloop:"
local NO_VAL = 4294967290 -- Slurm's "not set" and "infinite" are above

local has_socket, socket_library = pcall(require, "socket")
socket_library = has_socket and socket_library or nil

local kept, kept_count = {}, 0
local rest_until = 0

-- What users see and what logs hold: printable ASCII, of bounded length.
local function plain(text, longest)
  return (tostring(text):sub(1, longest):gsub("[^\32-\126]", "?"))
end

-- A JSON string of any bytes: those that are not ASCII become \u00XX, so that it is always valid.
local function quoted(text)
  local escaped = text:gsub('[%c"\\\127-\255]', function(c)
    return string.format("\\u%04x", c:byte())
  end)
  return '"' .. escaped .. '"'
end

local function number_or_nil(value)
  if type(value) == "number" and value > 0 and value < NO_VAL then
    return value
  end
  return nil
end

-- "gres:gpu:a100:2", "gpu:2", "gres/gpu=2" -> 2, "a100"; nil when it speaks of no GPU.
local function gpus_in(text)
  if type(text) ~= "string" then
    return nil
  end
  for item in text:gmatch("[^,]+") do
    local rest = item:gsub("^gres[:/]", ""):match("^gpu(.*)$")
    if rest then
      local count = rest:match("[:=](%d+)$")
      local kind = rest:match("^:([%a_][%w_.-]*)")
      return tonumber(count or "1"), kind
    end
  end
  return nil
end

-- GPUs of all nodes, and their type.
local function gpus_of(job)
  local count, kind = gpus_in(job.tres_per_job)
  if count then
    return count, kind
  end
  count, kind = gpus_in(job.tres_per_node or job.gres)
  if count then
    return count * (number_or_nil(job.min_nodes) or 1), kind
  end
  count, kind = gpus_in(job.tres_per_task)
  if count then
    return count * (number_or_nil(job.num_tasks) or 1), kind
  end
  return 0, nil
end

-- The question as JSON.
local function question_of(job, gpus, kind)
  local fields = { '"gpus":' .. math.floor(math.min(gpus, 4096)) }
  local function add(name, value)
    if type(value) == "string" and value ~= "" then
      fields[#fields + 1] = '"' .. name .. '":' .. quoted(value:sub(1, LONGEST))
    end
  end
  add("name", job.name)
  add("user", job.user_name)
  add("account", job.account)
  add("partition", job.partition)
  add("gpu_type", kind and kind:sub(1, 60))
  if type(job.comment) == "string" and #job.comment <= LONGEST then
    add("comment", job.comment)
  end
  local minutes = number_or_nil(job.time_limit)
  if minutes then
    fields[#fields + 1] = '"time_limit_s":' .. math.floor(math.min(minutes * 60, 1e9))
  end
  return "{" .. table.concat(fields, ",") .. "}"
end

-- By LuaSocket, where it is installed: no process is started. Only to an address in figures: looking
-- up a name could take longer than the bound, and nothing would end it.
local function asked_by_socket(socket, host, port, path, question)
  local header = ""
  if HEADER_FILE ~= "" then
    local file = assert(io.open(HEADER_FILE, "r"))
    header = (file:read("*l") or ""):gsub("%c", "") .. "\r\n"
    file:close()
  end
  local request = "POST " .. path .. " HTTP/1.0\r\nHost: " .. host .. "\r\n" .. header
    .. "Content-Type: application/json\r\nAccept: text/plain\r\nContent-Length: " .. #question
    .. "\r\n\r\n" .. question
  local until_s = socket.gettime() + BOUND_S
  local client = socket.tcp()
  local function hurry()
    client:settimeout(math.max(until_s - socket.gettime(), 0.001), "t")
  end
  hurry()
  local done, reason, part = client:connect(host, port)
  if done then
    hurry()
    done, reason = client:send(request)
  end
  if done then
    hurry()
    done, reason, part = client:receive(16384) -- fewer, then "closed", is the usual case
  end
  client:close()
  local whole = reason == "closed" and part or ""
  return whole:match("^HTTP/1%.%d 200 .-\r\n\r\n(.*)$") or ""
end

-- By curl. Every word of the command is ours.
local function asked_by_curl(question)
  local path = os.tmpname()
  local file, reason = io.open(path, "w")
  if not file then
    return nil, reason
  end
  file:write(question)
  file:close()
  local command = string.format(
    "/usr/bin/timeout -s KILL %.2f /usr/bin/curl --silent --fail --noproxy '*' --max-time %.2f"
      .. " --max-filesize 8192 -H 'Content-Type: application/json' -H 'Accept: text/plain' %s"
      .. " --data-binary @%s '%s' 2>/dev/null",
    BOUND_S + 0.2,
    BOUND_S,
    HEADER_FILE ~= "" and "-H @'" .. HEADER_FILE .. "'" or "",
    path,
    URL
  )
  local pipe = io.popen(command, "r")
  local answer = pipe and pipe:read(8192) or ""
  if pipe then
    pipe:close() -- Lua 5.1 does not tell how the command ended: the answer has to
  end
  os.remove(path)
  return answer
end

-- What the service says, or nil and why not.
local function asked(question)
  local host, port, path = URL:match("^http://([%d.]+):(%d+)(/.*)$")
  local answer, reason
  if socket_library and host then
    answer = asked_by_socket(socket_library, host, tonumber(port), path, question)
  else
    answer, reason = asked_by_curl(question)
  end
  if not answer then
    return nil, reason
  end
  if answer:sub(1, 7) ~= "source=" then
    return nil, "no answer within " .. BOUND_S .. " s, or a refusal"
  end
  return answer
end

-- The same from memory, when it was asked a moment ago.
local function answer_to(question)
  local now = os.time()
  local known = kept[question]
  if known and now < known.until_s then
    return known.answer
  end
  if now < rest_until then
    return nil
  end
  local answer, reason = asked(question)
  if not answer then
    rest_until = os.time() + REST_S
    slurm.log_info("wattloop: %s: %s; not asked again for %d s", URL, plain(reason, 200), REST_S)
    return nil
  end
  if answer:find("\nlater=1\n", 1, true) then
    return answer
  end
  if kept_count >= MOST_KEPT then
    kept, kept_count = {}, 0
  end
  kept[question] = { answer = answer, until_s = now + KEEP_S }
  kept_count = kept_count + 1
  return answer
end

-- Lines "key=value" of the service.
local function read_answer(answer)
  local found, messages = {}, {}
  for key, value in answer:gmatch("([%a_]+)=([^\n]*)\n") do
    if key == "message" then
      messages[#messages + 1] = plain(value, 300)
    else
      found[key] = value
    end
  end
  return found, messages
end

-- Return AdminComment without an imitation of our mark: only root submits a job with it.
local function without_mark(text)
  return (text:gsub("[Ww][Aa][Tt][Tt][Ll][Oo][Oo][Pp]:", "user-"))
end

local function tag_of(found)
  local energy_j, time_s = tonumber(found.energy_j), tonumber(found.time_s)
  local by = (found.source or ""):match("^[%a-]+$")
  if not (energy_j and time_s and by) then
    return nil
  end
  return string.format(
    '%s{"predicted_j":%.0f,"predicted_s":%.0f,"predicted_by":"%s"}', MARK, energy_j, time_s, by
  )
end

local function tell(job)
  local gpus, kind = gpus_of(job)
  if gpus < 1 then
    return
  end
  local answer = answer_to(question_of(job, gpus, kind))
  if not answer then
    return
  end
  local found, messages = read_answer(answer)
  for number = 1, math.min(#messages, 3) do
    slurm.log_user("wattloop: %s", messages[number])
  end
  local tag = tag_of(found)
  if tag then
    local other = job.admin_comment
    job.admin_comment = (other and other ~= "") and (other .. " " .. tag) or tag
  end
end

-- Slurm refuses AdminComment changed by users; some versions take it at submission, from the API.
local function stripped(job, uid)
  local text = job.admin_comment
  if uid ~= 0 and type(text) == "string" and text:lower():find(MARK, 1, true) then
    job.admin_comment = without_mark(text)
    slurm.log_info("wattloop: user %d wrote our mark into AdminComment; removed", uid)
  end
end

-- Whatever goes wrong in here, the job goes on.
local function safely(what, ...)
  local done, reason = pcall(what, ...)
  if not done then
    slurm.log_info("wattloop: %s", plain(reason, 300))
  end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  safely(stripped, job_desc, submit_uid)
  safely(tell, job_desc)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

slurm.log_info("wattloop: job_submit.lua loaded; asks by %s", socket_library and "LuaSocket" or "curl")
return slurm.SUCCESS
