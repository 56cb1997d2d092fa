//! Answers of the proxy's own making: refusals and faults, small, in the form the client accepts.
//!
//! They are never cached, and making one touches neither disk nor log. What is forwarded from the
//! backend: `exchange.rs`.

use super::body::Body;
use crate::engine::Refusal;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

/// The forms an answer can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Html,
    Json,
    Text,
}

/// Tells a client that a limit refused its request.
pub(super) fn refused(headers: &HeaderMap, refusal: &Refusal) -> Response<Body> {
    let status = match refusal.by_rate {
        true => StatusCode::TOO_MANY_REQUESTS,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let form = form(headers);
    let (limit, seconds) = (&refusal.limit, refusal.retry_after_secs);
    let text = match form {
        Form::Json => format!(
            "{{\"status\":{},\"limit\":{},\"retry_after\":{seconds}}}\n",
            status.as_u16(),
            serde_json::Value::from(limit.as_str()),
        ),
        Form::Text => format!("over the limit \"{limit}\"; try again in {seconds} s\n"),
        Form::Html => page(
            status,
            &format!(
                "Over the limit \u{201c}{}\u{201d}. Try again in {seconds} s.",
                escaped(limit)
            ),
        ),
    };
    let mut response = small(status, form, text);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Tells a client what went wrong.
pub(super) fn fault(headers: &HeaderMap, status: StatusCode) -> Response<Body> {
    let form = form(headers);
    let reason = status.canonical_reason().unwrap_or("error");
    let text = match form {
        Form::Json => {
            format!("{{\"status\":{},\"error\":\"{reason}\"}}\n", status.as_u16())
        }
        Form::Text => format!("{} {reason}\n", status.as_u16()),
        Form::Html => page(status, ""),
    };
    small(status, form, text)
}

/// Has the connection closed after this answer.
pub(super) fn last(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn small(status: StatusCode, form: Form, text: String) -> Response<Body> {
    let kind = match form {
        Form::Html => "text/html; charset=utf-8",
        Form::Json => "application/json",
        Form::Text => "text/plain; charset=utf-8",
    };
    let mut response = Response::new(Body::Whole(Some(Bytes::from(text))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn page(status: StatusCode, sentence: &str) -> String {
    let reason = status.canonical_reason().unwrap_or("error");
    let code = status.as_u16();
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{code} {reason}</title>\n\
         <h1>{code} {reason}</h1>\n<p>{sentence}</p>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The form that `Accept` likes best; the first of equals; text for who names none of ours.
fn form(headers: &HeaderMap) -> Form {
    let Some(accept) = headers.get(header::ACCEPT) else { return Form::Text };
    let mut best = (Form::Text, 0);
    for range in accept.as_bytes().split(|byte| *byte == b',') {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let kind = parts.next().unwrap_or_default();
        let form = match kind.to_ascii_lowercase().as_slice() {
            b"text/html" | b"application/xhtml+xml" => Form::Html,
            b"application/json" | b"text/json" => Form::Json,
            kind if kind.starts_with(b"application/") && kind.ends_with(b"+json") => Form::Json,
            b"text/plain" | b"text/*" | b"*/*" => Form::Text,
            _ => continue,
        };
        let weight = parts.find_map(weight).unwrap_or(1000);
        if weight > best.1 {
            best = (form, weight);
        }
    }
    best.0
}

/// `q=0.5` in thousandths.
fn weight(parameter: &[u8]) -> Option<u32> {
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    let value: f64 = str::from_utf8(value).ok()?.parse().ok()?;
    // Between 0 and 1000, so the cast loses nothing that counts.
    Some((value.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form_of(accept: &[u8]) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_bytes(accept).ok()?);
        Some(form(&headers))
    }

    #[test]
    fn the_form_that_is_liked_best() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Form::Html),
            ("application/json", Form::Json),
            ("application/problem+json", Form::Json),
            ("*/*", Form::Text),
            ("text/html;q=0.2, application/json;q=0.7", Form::Json),
            ("text/html;q=0", Form::Text),
            ("image/png", Form::Text),
        ] {
            assert_eq!(form_of(accept.as_bytes()), Some(expected), "{accept}");
        }
    }

    #[test]
    fn a_refusal_names_its_limit_and_the_seconds() {
        let refusal = Refusal { limit: "a<b".into(), retry_after_secs: 7, by_rate: true };
        let response = refused(&HeaderMap::new(), &refusal);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let cpu = Refusal { by_rate: false, ..refusal };
        assert_eq!(refused(&HeaderMap::new(), &cpu).status(), 503);
    }

    #[test]
    fn fuzz_any_accept_header_gets_some_form() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = form_of(bytes);
            let _ = weight(bytes);
        });
    }
}
