//! The short answers of HTTP doors, as HTML, JSON or text, according to the client's `Accept`.
//!
//! All answers that the doors produce themselves are written here, with the same wording. The doors
//! decide when to send them.

use evenkeel_core::limit::RefusalKind;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFormat {
    /// HTML, for browsers.
    Html,
    /// JSON, for programs.
    Json,
    /// Plain text, for clients without a preference.
    Text,
}

/// Status of a refusal: 403 by a rule, 429 by a limit in requests, 503 by one in CPU time.
#[must_use]
pub const fn refused(kind: RefusalKind) -> StatusCode {
    match kind {
        RefusalKind::Denied => StatusCode::FORBIDDEN,
        RefusalKind::OverRate => StatusCode::TOO_MANY_REQUESTS,
        RefusalKind::Busy => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl AnswerFormat {
    /// The format with the highest weight in `Accept`, the first of several equal ones. Text if
    /// none of them is acceptable.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> AnswerFormat {
        AnswerFormat::accepted(headers.get(header::ACCEPT))
    }

    /// The same for a value of `Accept`.
    #[must_use]
    pub fn accepted(accept: Option<&HeaderValue>) -> AnswerFormat {
        let Some(accept) = accept else { return AnswerFormat::Text };
        let mut best = (AnswerFormat::Text, 0);
        for range in accept.as_bytes().split(|byte| *byte == b',') {
            let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let kind = parts.next().unwrap_or_default();
            let form = match kind.to_ascii_lowercase().as_slice() {
                b"text/html" | b"application/xhtml+xml" => AnswerFormat::Html,
                b"application/json" | b"text/json" => AnswerFormat::Json,
                kind if kind.starts_with(b"application/") && kind.ends_with(b"+json") => {
                    AnswerFormat::Json
                }
                b"text/plain" | b"text/*" | b"*/*" => AnswerFormat::Text,
                _ => continue,
            };
            let weight = parts.find_map(weight).unwrap_or(1000);
            if weight > best.1 {
                best = (form, weight);
            }
        }
        best.0
    }

    /// The `Content-Type` of this format.
    #[must_use]
    pub fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            AnswerFormat::Html => "text/html; charset=utf-8",
            AnswerFormat::Json => "application/json",
            AnswerFormat::Text => "text/plain; charset=utf-8",
        })
    }

    /// Body for a refusal by `limit`, with the number of seconds after which the client may try
    /// again, or 0 if it makes no sense to try again.
    #[must_use]
    pub fn refusal(self, status: StatusCode, limit: &str, seconds: u64) -> String {
        match self {
            _ if seconds == 0 => self.denial(status, limit),
            AnswerFormat::Json => format!(
                "{{\"status\":{},\"limit\":{},\"retry_after\":{seconds}}}\n",
                status.as_u16(),
                serde_json::Value::from(limit),
            ),
            AnswerFormat::Text => format!("over the limit \"{limit}\"; try again in {seconds} s\n"),
            AnswerFormat::Html => page(
                status,
                &format!(
                    "Over the limit \u{201c}{}\u{201d}. Try again in {seconds} s.",
                    escaped(limit)
                ),
            ),
        }
    }

    fn denial(self, status: StatusCode, rule: &str) -> String {
        match self {
            AnswerFormat::Json => format!(
                "{{\"status\":{},\"limit\":{}}}\n",
                status.as_u16(),
                serde_json::Value::from(rule),
            ),
            AnswerFormat::Text => format!("denied by the rule \"{rule}\"\n"),
            AnswerFormat::Html => {
                page(status, &format!("Denied by the rule \u{201c}{}\u{201d}.", escaped(rule)))
            }
        }
    }

    /// Body for an error.
    #[must_use]
    pub fn fault(self, status: StatusCode) -> String {
        let reason = status.canonical_reason().unwrap_or("error");
        let code = status.as_u16();
        match self {
            AnswerFormat::Json => format!("{{\"status\":{code},\"error\":\"{reason}\"}}\n"),
            AnswerFormat::Text => format!("{code} {reason}\n"),
            AnswerFormat::Html => page(status, explanation(status)),
        }
    }
}

/// The explanation of an error for a person.
fn explanation(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_GATEWAY => "The server behind this address does not answer.",
        StatusCode::GATEWAY_TIMEOUT => {
            "The server behind this address did not answer in time. Please try again later."
        }
        StatusCode::SERVICE_UNAVAILABLE => "The server is busy. Please try again.",
        StatusCode::REQUEST_TIMEOUT => "The request did not arrive in time.",
        StatusCode::PAYLOAD_TOO_LARGE => "The request is too large.",
        _ => "The request is not valid.",
    }
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

/// Parses `q=0.5` into thousandths.
fn weight(parameter: &[u8]) -> Option<u32> {
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    let value: f64 = str::from_utf8(value).ok()?.parse().ok()?;
    // The value is between 0 and 1000, so the cast loses only the fraction.
    Some((value.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form_of(accept: &[u8]) -> Option<AnswerFormat> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_bytes(accept).ok()?);
        Some(AnswerFormat::of(&headers))
    }

    #[test]
    fn the_form_that_is_liked_best() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", AnswerFormat::Html),
            ("application/json", AnswerFormat::Json),
            ("application/problem+json", AnswerFormat::Json),
            ("*/*", AnswerFormat::Text),
            ("text/html;q=0.2, application/json;q=0.7", AnswerFormat::Json),
            ("text/html;q=0", AnswerFormat::Text),
            ("image/png", AnswerFormat::Text),
        ] {
            assert_eq!(form_of(accept.as_bytes()), Some(expected), "{accept}");
        }
    }

    #[test]
    fn a_refusal_names_its_limit_and_the_seconds_and_nothing_of_it_is_markup() {
        let told = |form: AnswerFormat| form.refusal(StatusCode::TOO_MANY_REQUESTS, "a<\"b", 7);
        assert_eq!(told(AnswerFormat::Text), "over the limit \"a<\"b\"; try again in 7 s\n");
        let json: serde_json::Value =
            serde_json::from_str(&told(AnswerFormat::Json)).expect("JSON");
        assert_eq!(json, serde_json::json!({"status": 429, "limit": "a<\"b", "retry_after": 7}));
        let html = told(AnswerFormat::Html);
        assert!(html.contains("\u{201c}a&lt;&quot;b\u{201d}. Try again in 7 s."), "{html}");
        assert!(html.contains("<title>429 Too Many Requests</title>"), "{html}");
        let denied = |form: AnswerFormat| form.refusal(StatusCode::FORBIDDEN, "a<\"b", 0);
        assert_eq!(denied(AnswerFormat::Text), "denied by the rule \"a<\"b\"\n");
        let json: serde_json::Value =
            serde_json::from_str(&denied(AnswerFormat::Json)).expect("JSON");
        assert_eq!(json, serde_json::json!({"status": 403, "limit": "a<\"b"}));
        assert!(denied(AnswerFormat::Html).contains("rule \u{201c}a&lt;&quot;b\u{201d}."));
        let down = AnswerFormat::Html.fault(StatusCode::BAD_GATEWAY);
        assert!(down.contains("<p>The server behind this address does not answer.</p>"), "{down}");
    }

    #[test]
    fn fuzz_any_accept_header_gets_some_form() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let _ = form_of(bytes);
            let _ = weight(bytes);
        });
    }
}
