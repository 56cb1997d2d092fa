-- HAProxy asks Tollgate before a request goes to its server. For `lua-load`; needs HAProxy 2.6.
--
-- Sets txn.tollgate_status (503 or 429) and txn.tollgate_retry where Tollgate refuses, and
-- txn.tollgate_id, which the log reports. Whatever goes wrong here, the request passes.

local url = "http://127.0.0.1:9971/check"
-- Longer than `max_delay`: with `hold` and `delay` the answer comes when the wait is over.
local timeout_ms = 60000
-- HAProxy tries three times to connect, a second each: who finds nobody there spares the others
-- that, for so many seconds.
local pause_s = 5
local gone_until = 0

local function first(headers, name)
    local values = headers and headers[name]
    return values and values[0]
end

local function ask(txn)
    local headers = {
        ["x-real-ip"] = { txn.f:src() },
        ["x-original-method"] = { txn.f:method() },
        ["x-original-uri"] = { txn.f:url() },
    }
    for original, name in pairs({ ["host"] = "x-original-host", ["user-agent"] = "user-agent",
                                  ["cookie"] = "cookie" }) do
        local value = txn.f:req_hdr(original)
        if value and value ~= "" then
            headers[name] = { value }
        end
    end
    return core.httpclient():get({ url = url, headers = headers, timeout = timeout_ms })
end

core.register_action("tollgate", { "http-req" }, function(txn)
    if core.now().sec < gone_until then
        return
    end
    local asked, answer = pcall(ask, txn)
    if not asked or not answer or answer.status < 200 or answer.status >= 500 then
        gone_until = core.now().sec + pause_s
        return
    end
    if answer.status == 204 then
        txn:set_var("txn.tollgate_id", first(answer.headers, "x-tollgate-id") or "-")
    elseif answer.status == 403 then
        txn:set_var("txn.tollgate_status", first(answer.headers, "x-tollgate-status") or "")
        txn:set_var("txn.tollgate_retry", first(answer.headers, "retry-after") or "1")
    end
end)
