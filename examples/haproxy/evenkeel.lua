-- HAProxy asks Evenkeel before a request goes to its server. For `lua-load`; needs HAProxy 2.6.
--
-- Where Evenkeel refuses, its answer goes to the client as it is: 503 or 429, Retry-After, and a
-- line that names the limit, in the form that the client accepts. Else txn.evenkeel_id is set,
-- which the log reports. After any error here, the request passes.

local url = "http://127.0.0.1:9971/check?deny=status"
-- With `hold`, `delay` or `queue`, which answer when the wait is over: longer than `max_delay`.
local timeout_ms = 2000
-- HAProxy tries three times to connect, a second each. After a failure, other requests skip Evenkeel
-- for this number of seconds.
local pause_s = 5
local gone_until = 0

local asked_with = { host = "x-original-host", ["user-agent"] = "user-agent", cookie = "cookie",
                     accept = "accept", signature = "signature",
                     ["signature-input"] = "signature-input",
                     ["signature-agent"] = "signature-agent" }

local function first(headers, name)
    local values = headers and headers[name]
    return values and values[0]
end

local function ask(txn)
    local tls = txn.f:ssl_fc()
    local headers = {
        ["x-original-proto"] = { (tls == true or tls == 1) and "https" or "http" },
        ["x-real-ip"] = { txn.f:src() },
        ["x-original-method"] = { txn.f:method() },
        ["x-original-uri"] = { txn.f:url() },
    }
    for original, name in pairs(asked_with) do
        local value = txn.f:req_hdr(original)
        if value and value ~= "" then
            headers[name] = { value }
        end
    end
    return core.httpclient():get({ url = url, headers = headers, timeout = timeout_ms })
end

core.register_action("evenkeel", { "http-req" }, function(txn)
    if core.now().sec < gone_until then
        return
    end
    local asked, answer = pcall(ask, txn)
    local refused = asked and answer and first(answer.headers, "x-evenkeel-status")
    if refused then
        local reply = txn:reply({ status = answer.status, body = answer.body })
        for _, name in ipairs({ "retry-after", "content-type", "cache-control" }) do
            reply:add_header(name, first(answer.headers, name) or "")
        end
        txn:done(reply)
    elseif not asked or not answer or answer.status < 200 or answer.status >= 500 then
        gone_until = core.now().sec + pause_s
    elseif answer.status >= 400 then
        -- The request is malformed, and must not pass because of that.
        txn:done(txn:reply({ status = 400 }))
    elseif answer.status == 204 then
        txn:set_var("txn.evenkeel_id", first(answer.headers, "x-evenkeel-id") or "-")
    end
end)
