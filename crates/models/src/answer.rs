//! The answers of Evenkeel itself to clients of language models: refusals and errors in the form of
//! each API, and the headers with the requests and tokens that are left.
//!
//! Official clients read the status, `Retry-After` and these bodies to decide when to try again.

use bytes::Bytes;
use evenkeel_core::limit::{LimitUnit, RefusalKind};
use evenkeel_engine::{Quota, RequestRefusal};
use evenkeel_identity::answer;
use evenkeel_usage::Dialect;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::{Value, json};

/// The refusal of a request to a language model.
#[must_use]
pub fn refused(dialect: Dialect, refusal: &RequestRefusal) -> Response<Bytes> {
    let status = answer::refused(refusal.kind);
    let seconds = refusal.retry_after_secs;
    let limit = &refusal.limit;
    let message = match refusal.kind {
        RefusalKind::Denied => format!("Denied by the rule \"{limit}\"."),
        RefusalKind::OverRate => {
            format!("Rate limit \"{limit}\" reached. Please try again in {seconds}s.")
        }
        RefusalKind::Busy => {
            format!("The server is busy (\"{limit}\"). Please try again in {seconds}s.")
        }
    };
    let names = match refusal.kind {
        RefusalKind::Denied => DENIED,
        RefusalKind::OverRate => OVER_RATE,
        RefusalKind::Busy => BUSY,
    };
    let mut response = response(dialect, status, names, &message);
    if seconds > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The answer to a request to a language model that failed with `status`.
#[must_use]
pub fn fault(dialect: Dialect, status: StatusCode) -> Response<Bytes> {
    let (names, message) = match status {
        StatusCode::BAD_GATEWAY => (FAILED, "The backend failed to answer."),
        StatusCode::GATEWAY_TIMEOUT => (TOO_LATE, "The backend did not answer in time."),
        StatusCode::SERVICE_UNAVAILABLE => (BUSY, "The server is busy. Please try again."),
        StatusCode::PAYLOAD_TOO_LARGE => (TOO_LARGE, "The request is too large."),
        StatusCode::REQUEST_TIMEOUT => (INVALID, "The request did not arrive in time."),
        _ if status.is_server_error() => (FAILED, "The server failed to answer."),
        _ => (INVALID, "The request is not valid."),
    };
    response(dialect, status, names, message)
}

/// The names that APIs have for a kind of error.
#[derive(Clone, Copy)]
struct ErrorNames {
    /// `type` of OpenAI's.
    openai_type: &'static str,
    /// `code` of OpenAI's.
    openai_code: Option<&'static str>,
    /// `type` of Anthropic's.
    anthropic: &'static str,
}

impl ErrorNames {
    const fn new(
        openai_type: &'static str,
        openai_code: Option<&'static str>,
        anthropic: &'static str,
    ) -> ErrorNames {
        ErrorNames { openai_type, openai_code, anthropic }
    }
}

const DENIED: ErrorNames =
    ErrorNames::new("invalid_request_error", Some("permission_denied"), "permission_error");
const OVER_RATE: ErrorNames =
    ErrorNames::new("rate_limit_error", Some("rate_limit_exceeded"), "rate_limit_error");
const BUSY: ErrorNames = ErrorNames::new("server_error", Some("overloaded"), "overloaded_error");
const FAILED: ErrorNames = ErrorNames::new("server_error", None, "api_error");
const TOO_LATE: ErrorNames = ErrorNames::new("server_error", None, "timeout_error");
const INVALID: ErrorNames = ErrorNames::new("invalid_request_error", None, "invalid_request_error");
const TOO_LARGE: ErrorNames = ErrorNames::new("invalid_request_error", None, "request_too_large");

fn response(
    dialect: Dialect,
    status: StatusCode,
    names: ErrorNames,
    message: &str,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body(dialect, names, message).to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn body(dialect: Dialect, names: ErrorNames, message: &str) -> Value {
    let ErrorNames { openai_type, openai_code, anthropic } = names;
    match dialect {
        Dialect::Ollama | Dialect::OllamaEmbeddings => json!({"error": message}),
        Dialect::Messages => {
            json!({"type": "error", "error": {"type": anthropic, "message": message}})
        }
        _ => json!({"error": {
            "message": message, "type": openai_type, "param": null, "code": openai_code,
        }}),
    }
}

/// Sets the headers with the limits of requests and tokens, what is left of them, and the time
/// until all is available again. Of several limits in one unit, that with the least left is shown.
pub fn set_quotas(headers: &mut HeaderMap, quotas: &[Quota]) {
    for (unit, names) in [(LimitUnit::Hits, REQUESTS), (LimitUnit::Tokens, TOKENS)] {
        let those = quotas.iter().filter(|quota| quota.unit == unit);
        let Some(quota) = those.min_by_key(|quota| quota.left) else { continue };
        let [limit, remaining, reset] = names.map(HeaderName::from_static);
        headers.insert(limit, HeaderValue::from(quota.limit));
        headers.insert(remaining, HeaderValue::from(quota.left));
        if let Ok(time) = HeaderValue::try_from(format!("{}s", quota.reset_secs)) {
            headers.insert(reset, time);
        }
    }
}

const REQUESTS: [&str; 3] =
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
const TOKENS: [&str; 3] =
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];
