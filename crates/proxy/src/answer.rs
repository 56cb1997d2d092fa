//! Answers that the proxy itself makes: refusals and errors. They are small and in the format that
//! the client accepts, or in the form of the API of a language model: `evenkeel_models::answer`.
//!
//! They are never cached, and making one touches neither disk nor log. Their texts are in
//! `identity::form`. Answers forwarded from the backend are in `exchange.rs`.

use super::context::settings::ThreadSettings;
use super::download::AnswerBody;
use bytes::Bytes;
use evenkeel_engine::RequestRefusal;
use evenkeel_identity::answer::{self, AnswerFormat};
use evenkeel_identity::refusal_pages::RefusalPageSet;
use evenkeel_usage::Dialect;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};

pub(super) fn refused(
    pages: &RefusalPageSet,
    headers: &HeaderMap,
    refusal: &RequestRefusal,
) -> Response<AnswerBody> {
    let (form, status) = (AnswerFormat::of(headers), answer::refused(refusal.kind));
    let seconds = refusal.retry_after_secs;
    let text = page(pages, form, status, seconds)
        .unwrap_or_else(|| form.refusal(status, &refusal.limit, seconds));
    let mut response = small(status, form, text);
    if seconds > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The operator's page, for browsers.
fn page(
    pages: &RefusalPageSet,
    form: AnswerFormat,
    status: StatusCode,
    seconds: u64,
) -> Option<String> {
    match form {
        AnswerFormat::Html => pages.render(status, seconds),
        AnswerFormat::Json | AnswerFormat::Text => None,
    }
}

/// The form in which a client expects errors.
pub(super) struct FaultForm<'a> {
    /// The API of a language model that it uses, if costs are counted in tokens.
    dialect: Option<Dialect>,
    /// What it accepts otherwise.
    accept: Option<HeaderValue>,
    pages: &'a RefusalPageSet,
}

impl FaultForm<'_> {
    pub(super) fn of<'a>(settings: &'a ThreadSettings, head: &Parts) -> FaultForm<'a> {
        let tokens = settings.tokens.as_ref();
        FaultForm {
            dialect: tokens.and_then(|_| Dialect::of_path(head.uri.path())),
            accept: head.headers.get(header::ACCEPT).cloned(),
            pages: &settings.pages,
        }
    }
}

/// Makes the answer to a request that failed with `status`.
pub(super) fn fault(form: &FaultForm<'_>, status: StatusCode) -> Response<AnswerBody> {
    failed(form, status, 0)
}

fn failed(form: &FaultForm<'_>, status: StatusCode, seconds: u64) -> Response<AnswerBody> {
    if let Some(dialect) = form.dialect {
        return evenkeel_models::answer::fault(dialect, status)
            .map(|body| AnswerBody::Whole(Some(body)));
    }
    let format = AnswerFormat::accepted(form.accept.as_ref());
    let text = page(form.pages, format, status, seconds).unwrap_or_else(|| format.fault(status));
    small(status, format, text)
}

/// Makes the answer to a request for which there is no room at the moment (503, try again in one
/// second).
pub(super) fn busy(form: &FaultForm<'_>) -> Response<AnswerBody> {
    let mut response = failed(form, StatusCode::SERVICE_UNAVAILABLE, 1);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// How long a client may remember where it was sent. Without it browsers do so for ever, and would
/// still be sent away when the redirect is switched off. Shared caches may not: one that ends TLS
/// itself would send all its clients in a circle.
const REDIRECT_LIFETIME: HeaderValue = HeaderValue::from_static("private, max-age=300");

/// Makes the answer that sends a client to another address. It keeps the method (308).
pub(super) fn moved(to: HeaderValue) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(None));
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(header::LOCATION, to);
    response.headers_mut().insert(header::CACHE_CONTROL, REDIRECT_LIFETIME);
    response
}

/// Makes the answer to an authority that checks a name (RFC 8555, 8.3).
pub(super) fn challenge(text: Box<str>) -> Response<AnswerBody> {
    small(StatusCode::OK, AnswerFormat::Text, text.into())
}

/// Marks this answer as the last one on its connection.
pub(super) fn last(mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn small(status: StatusCode, form: AnswerFormat, text: String) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(Some(Bytes::from(text))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, form.content_type());
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::limit::RefusalKind;

    #[test]
    fn a_refusal_names_its_limit_and_the_seconds() {
        let pages = RefusalPageSet::default();
        let refusal = RequestRefusal {
            limit: "a<b".into(),
            retry_after_secs: 7,
            kind: RefusalKind::OverRate,
            waiting_room: None,
        };
        let response = refused(&pages, &HeaderMap::new(), &refusal);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let cpu = RequestRefusal { kind: RefusalKind::Busy, ..refusal.clone() };
        assert_eq!(refused(&pages, &HeaderMap::new(), &cpu).status(), 503);
        let denied = RequestRefusal { kind: RefusalKind::Denied, retry_after_secs: 0, ..refusal };
        let response = refused(&pages, &HeaderMap::new(), &denied);
        assert_eq!(response.status(), 403);
        assert!(!response.headers().contains_key("retry-after"));
    }
}
