-- Apache asks Evenkeel before a request runs, and reports its time afterwards. For mod_lua, with
-- LuaSocket of the same version of Lua (Debian: lua-socket). After any error here, the request
-- passes.

local host, ask_port, tell_port = "127.0.0.1", 9971, 5514
-- With `hold`, `delay` or `queue`, which answer when the wait is over: longer than `max_delay`.
local timeout_s = 2
-- After a failure, this thread does not ask Evenkeel for this time (microseconds).
local pause_us, gone_until = 5000000, 0

local function question(r)
    local lines = { "GET /check?deny=status HTTP/1.1", "Host: evenkeel", "Connection: close",
                    "X-Real-IP: " .. r.useragent_ip, "X-Original-Method: " .. r.method,
                    "X-Original-URI: " .. r.unparsed_uri,
                    "X-Original-Proto: " .. (r.is_https and "https" or "http") }
    for from, to in pairs({ Host = "X-Original-Host", ["User-Agent"] = "User-Agent",
                            Cookie = "Cookie", Accept = "Accept", Signature = "Signature",
                            ["Signature-Input"] = "Signature-Input",
                            ["Signature-Agent"] = "Signature-Agent" }) do
        local value = r.headers_in[from]
        if value then
            lines[#lines + 1] = to .. ": " .. value
        end
    end
    return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

local function ask(r)
    local connection = require("socket").tcp()
    connection:settimeout(1)
    assert(connection:connect(host, ask_port))
    connection:settimeout(timeout_s)
    assert(connection:send(question(r)))
    local answer = { status = tonumber(assert(connection:receive()):match("^HTTP/1%.1 (%d+)")) }
    repeat
        local line = assert(connection:receive())
        local name, value = line:match("^([^:]+):%s*(.*)$")
        if name then answer[name:lower()] = value end
    until line == ""
    connection:close()
    return answer
end

function access(r)
    if not r.is_initial_req or r:clock() < gone_until then return apache2.DECLINED end
    local asked, answer = pcall(ask, r)
    if not asked then
        gone_until = r:clock() + pause_us
        return apache2.DECLINED
    end
    local refused = tonumber(answer["x-evenkeel-status"])
    if refused then
        -- The other table, `headers_out`, is not used for errors.
        r.err_headers_out["Retry-After"] = answer["retry-after"]
        return refused
    end
    -- The request is malformed, and must not pass because of that.
    if answer.status and answer.status >= 400 and answer.status < 500 then return 400 end
    r.notes["evenkeel-id"] = answer["x-evenkeel-id"] or ""
    r.notes["evenkeel-since"] = tostring(r:clock())
    return apache2.DECLINED
end

-- An output filter that is called when the response begins. It reads no data: returning at once
-- removes it.
function begun(r)
    r.notes["evenkeel-begun"] = tostring(r:clock())
end

function log(r)
    local id = r.notes["evenkeel-id"]
    if id and id ~= "" then
        pcall(function()
            -- The time until the response began. The time until its end would charge a slow client
            -- for reading.
            local begun = tonumber(r.notes["evenkeel-begun"] or "") or r:clock()
            local took = (begun - tonumber(r.notes["evenkeel-since"])) / 1000000
            local cost = (r.headers_out["Server-Timing"] or "-"):gsub('"', "")
            local line = ('evenkeel id=%s upstream=%.6f cost="%s"'):format(id, took, cost)
            require("socket").udp():sendto(line, host, tell_port)
        end)
    end
    return apache2.OK
end
