//! Access logs with one JSON object a line: Caddy's own format, and those of nginx, Traefik and
//! others with names chosen by operators. The parser looks for each known name at the top level;
//! Caddy's names are one level down, with all headers of the request.

use super::common::{named, request, status};
use super::time;
use crate::replay::entry::{LineDraft, StampMoment};
use evenkeel_core::meter::header_cost;
use evenkeel_core::units::{Nanos, Time};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::net::IpAddr;

/// The maximum number of headers of one request that are kept.
const HEADERS_MAX: usize = 64;

pub fn parse(line: &str) -> Option<LineDraft<'static>> {
    let Ok(Value::Object(line)) = serde_json::from_str(line.get(line.find('{')?..)?.trim_end())
    else {
        return None;
    };
    match line.get("request") {
        Some(Value::Object(request)) => caddy(&line, request),
        _ => flat(&line),
    }
}

fn caddy(line: &Map<String, Value>, asked: &Map<String, Value>) -> Option<LineDraft<'static>> {
    let text = |name: &str| asked.get(name).and_then(Value::as_str).map(str::to_owned);
    let (at, coarse) = moment(line.get("ts")?)?;
    let address = text("remote_ip").or_else(|| {
        let with_port = text("remote_addr")?;
        with_port.rsplit_once(':').map(|(address, _)| address.trim_matches(['[', ']']).to_owned())
    });
    let mut draft = LineDraft {
        time: at,
        coarse,
        peer: address?.parse::<IpAddr>().ok(),
        method: text("method")?.into(),
        target: text("uri")?.into(),
        host: text("host").map(Cow::from),
        status: line.get("status").and_then(Value::as_u64)?.try_into().ok()?,
        took: line.get("duration").and_then(length),
        ..LineDraft::default()
    };
    draft.tells.host = true;
    draft.tells.took = draft.took.is_some();
    if let Some(Value::Object(headers)) = asked.get("headers") {
        take_headers(headers, &mut draft);
    }
    draft.cost = stated_cost(line, "X-Cost").or_else(|| stated_cost(line, "Server-Timing"));
    Some(draft)
}

fn take_headers(headers: &Map<String, Value>, draft: &mut LineDraft<'static>) {
    draft.tells.headers = true;
    (draft.tells.agent, draft.tells.referrer) = (true, true);
    for (name, values) in headers.iter().take(HEADERS_MAX) {
        let first = values.get(0).unwrap_or(values).as_str().unwrap_or_default().to_owned();
        let joined = |by: &str| {
            let lines = values.as_array().into_iter().flatten().filter_map(Value::as_str);
            lines.collect::<Vec<_>>().join(by)
        };
        let lower = name.to_ascii_lowercase();
        let value = match lower.as_str() {
            "x-forwarded-for" | "forwarded" if values.is_array() => joined(", "),
            "cookie" if values.is_array() => joined("; "),
            _ => first,
        };
        match lower.as_str() {
            "user-agent" => draft.agent = Some(value.into()),
            "referer" => draft.referrer = Some(value.into()),
            "x-forwarded-for" => draft.forwarded = Some(value.into()),
            // Caddy hides the value, and the same text in every request would be one key for all.
            "cookie" | "authorization" if value == "REDACTED" => {}
            name => draft.headers.push((name.to_owned(), value)),
        }
    }
}

/// The line of a header of the answer that states a cost: the first one that says anything about
/// CPU time, as at the proxy. Each server on the way may add a line to `Server-Timing`.
fn stated_cost(line: &Map<String, Value>, name: &str) -> Option<Cow<'static, str>> {
    let lines = line.get("resp_headers")?.get(name)?.as_array()?;
    let mut lines = lines.iter().filter_map(Value::as_str);
    let cost = lines.find(|line| header_cost(line.as_bytes()) != Ok(None))?;
    Some(cost.to_owned().into())
}

/// The value of the first of these names that exists.
fn first<'a>(line: &'a Map<String, Value>, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| line.get(*name)).filter(|value| !value.is_null())
}

fn word(line: &Map<String, Value>, names: &[&str]) -> Option<Cow<'static, str>> {
    let value = first(line, names)?.as_str()?;
    named(value).map(|value| value.into_owned().into())
}

fn flat(line: &Map<String, Value>) -> Option<LineDraft<'static>> {
    let times = ["msec", "ts", "StartUTC", "time_iso8601", "start_time", "timestamp", "@timestamp"];
    let more = ["time_local", "time"];
    let began = ["StartUTC", "start_time"].iter().any(|name| line.contains_key(*name));
    let (at, coarse) = moment(first(line, &times).or_else(|| first(line, &more))?)?;
    let peer = ["remote_addr", "remote_ip", "client_ip", "ClientHost", "clientip", "ip"];
    let mut draft = LineDraft {
        time: at,
        stamp: if began { StampMoment::Start } else { StampMoment::End },
        coarse,
        peer: word(line, &peer)?.parse::<IpAddr>().ok(),
        host: word(line, &["host", "http_host", "RequestHost", "server_name", "authority"]),
        agent: word(line, &["http_user_agent", "user_agent", "agent", "request_User-Agent"]),
        referrer: word(line, &["http_referer", "http_referrer", "referer", "request_Referer"]),
        forwarded: word(
            line,
            &["http_x_forwarded_for", "x_forwarded_for", "xff", "http_forwarded"],
        ),
        cost: word(line, &["cost"]),
        ..LineDraft::default()
    };
    asked(line, &mut draft)?;
    let code = first(line, &["status", "response_code", "DownstreamStatus", "code"])?;
    draft.status = match code {
        Value::String(text) => status(text)?,
        number => number.as_u64()?.try_into().ok()?,
    };
    let backend = first(line, &["upstream_response_time", "OriginDuration"]);
    let whole = first(line, &["request_time", "duration", "Duration", "response_time"]);
    let nanos = line.contains_key("DownstreamStatus");
    let read = |value: &Value| if nanos { value.as_u64().map(Nanos) } else { length(value) };
    draft.total = whole.and_then(read);
    draft.took = backend.and_then(read).or(draft.total);
    draft.tells.took = draft.took.is_some();
    draft.tells.agent = draft.agent.is_some();
    draft.tells.referrer = draft.referrer.is_some();
    draft.tells.host = draft.host.is_some();
    Some(draft)
}

fn asked(line: &Map<String, Value>, draft: &mut LineDraft<'static>) -> Option<()> {
    let target = ["request_uri", "uri", "path", "RequestPath", "url"];
    match word(line, &["request"]) {
        Some(whole) => {
            let mut parts = LineDraft::default();
            request(&whole, &mut parts);
            draft.method = parts.method.into_owned().into();
            draft.target = parts.target.into_owned().into();
        }
        None => {
            draft.method = word(line, &["request_method", "method", "RequestMethod"])?;
            draft.target = word(line, &target)?;
        }
    }
    Some(())
}

/// A time, and whether it is known to the second only.
fn moment(value: &Value) -> Option<(Time, bool)> {
    match value {
        Value::Number(number) => {
            let text = number.to_string();
            Some((time::epoch(&text)?, !text.contains('.')))
        }
        Value::String(text) => {
            let read = time::iso(text).or_else(|| time::common(text));
            Some((read.or_else(|| time::epoch(text))?, !text.contains('.')))
        }
        _ => None,
    }
}

/// A duration: seconds as a number or as text, or a number with its unit.
fn length(value: &Value) -> Option<Nanos> {
    let read = match value {
        Value::Number(number) => {
            let seconds = number.as_f64().filter(|seconds| (0.0..1e6).contains(seconds))?;
            Nanos::from_secs_f64(seconds)
        }
        Value::String(text) => time::sum(text).or_else(|| text.parse().ok())?,
        _ => return None,
    };
    Some(time::at_least(read, Nanos::from_millis(1)))
}
