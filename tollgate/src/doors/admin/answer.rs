//! What the admin door answers to each path.
//!
//! It sees the head of a request and nothing else, and decides at once; connections are the
//! business of `admin`.

use super::guard::{Guard, Refused};
use super::{Readiness, Sources, Stage, observe, page};
use crate::watch::counts::AdminCounts;
use crate::watch::prometheus;
use crate::watch::snapshot::Query;
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::Full;
use std::net::IpAddr;
use std::sync::Arc;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
/// The page needs its own style and nothing else; no other site may frame it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'none'";

/// Where requests are answered.
pub struct Desk {
    pub guard: Guard,
    pub counts: AdminCounts,
    pub sources: Sources,
    pub readiness: Arc<Readiness>,
}

impl Desk {
    /// The answer to `peer`, which asked with this head.
    pub fn answer(&self, head: &Parts, has_body: bool, peer: IpAddr) -> Response<Full<Bytes>> {
        self.counts.requests.increment(1);
        if let Err(refused) = self.guard.check(head, has_body, peer) {
            self.counts.refused[refused as usize].increment(1);
            return refusal(refused);
        }
        match head.uri.path() {
            "/" => self.page(),
            "/healthz" => response(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => self.readiness(),
            "/metrics" => self.metrics(),
            "/api/top" => self.top(head.uri.query().unwrap_or_default()),
            "/api/peers" => self.peers(),
            "/api/store" => self.store(),
            "/api/config" => response(StatusCode::OK, "application/yaml", (self.sources.show)()),
            _ => response(StatusCode::NOT_FOUND, TEXT, NOT_FOUND),
        }
    }

    fn page(&self) -> Response<Full<Bytes>> {
        let query = Query { limit: None, rows: page::ROWS };
        let snapshot = observe::snapshot(&self.sources, &query);
        response(StatusCode::OK, HTML, page::html(&snapshot))
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        match self.readiness.get() {
            Stage::Ready => response(StatusCode::OK, TEXT, "ready\n"),
            Stage::Starting => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n"),
            Stage::Draining => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n"),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let observed = observe::metrics(&self.sources, self.readiness.get());
        let text = prometheus::text(self.sources.watch.registry(), &observed);
        response(StatusCode::OK, prometheus::CONTENT_TYPE, text)
    }

    fn top(&self, query: &str) -> Response<Full<Bytes>> {
        let query = match Query::parse(query) {
            Ok(query) => query,
            Err(fault) => {
                return response(StatusCode::BAD_REQUEST, TEXT, format!("{fault}\n"));
            }
        };
        json(&observe::snapshot(&self.sources, &query))
    }

    fn peers(&self) -> Response<Full<Bytes>> {
        match self.sources.watch.peers.read() {
            Some(report) => json(&report),
            None => response(StatusCode::NOT_FOUND, TEXT, ALONE),
        }
    }

    fn store(&self) -> Response<Full<Bytes>> {
        match self.sources.watch.store.read() {
            Some(report) => json(&report),
            None => response(StatusCode::NOT_FOUND, TEXT, NO_STORE),
        }
    }
}

const NO_STORE: &str = "this instance asks no store: its configuration has no section `store`\n";
const NOT_FOUND: &str =
    "not here; there are / /healthz /readyz /metrics /api/top /api/peers /api/store /api/config\n";
const ALONE: &str = "this instance counts alone: its configuration has no section `peers`\n";

fn json(value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(value) {
        Ok(json) => response(StatusCode::OK, "application/json", json + "\n"),
        Err(error) => {
            let text = format!("{error}\n");
            response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, text)
        }
    }
}

fn refusal(refused: Refused) -> Response<Full<Bytes>> {
    let (status, text) = refused.answer();
    let mut response = response(status, TEXT, text);
    let (name, value) = match refused {
        Refused::Method => (ALLOW, "GET, HEAD"),
        Refused::Token => (WWW_AUTHENTICATE, "Bearer"),
        Refused::Body | Refused::Host | Refused::Origin => (CONNECTION, "close"),
    };
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers: [(HeaderName, &'static str); 4] = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, POLICY),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
