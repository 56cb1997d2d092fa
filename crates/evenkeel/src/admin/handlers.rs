//! The answers of the admin door to each path.
//!
//! Every request except an order is answered at once from its head alone. Connections are handled
//! in `admin`, the effect of orders in `override_orders`, and the live data for watchers in `live`.

use super::guard::{AccessError, AdminGuard, ORDERS, is_order};
use super::live::{ClientKey, EventFeed, LiveFeed, WatcherEnd};
use super::override_orders::OrderError;
use super::sources::{AdminSources, ReadinessStage};
use super::{observe, page, setup};
use bytes::Bytes;
use evenkeel_telemetry::counts::AdminCounts;
use evenkeel_telemetry::prometheus;
use evenkeel_telemetry::snapshot::{TopQuery, pairs};
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// The page needs only its own files, and no other site may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
                      form-action 'none'";
/// The maximum size of an order, in bytes.
const ORDER_BYTES_MAX: usize = 4096;
/// The time limit for an order to arrive.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of the history, in seconds.
const HISTORY_SECS_MAX: u64 = 3_600;

pub struct AdminShared {
    pub guard: AdminGuard,
    pub counts: AdminCounts,
    pub sources: AdminSources,
    pub readiness: Arc<Mutex<ReadinessStage>>,
    pub live: LiveFeed,
}

/// The body of an answer: all of it, or events as they come.
pub type AdminBody = Either<Full<Bytes>, EventFeed>;

/// The signal that ends a watched connection. Empty until the connection watches.
pub type WatcherSlot = Mutex<Option<WatcherEnd>>;

impl AdminShared {
    /// Answers the request with this head from `peer`. If it starts to watch, `watching` gets the
    /// signal for its end.
    pub async fn answer(
        &self,
        head: &Parts,
        body: Incoming,
        peer: IpAddr,
        watching: &WatcherSlot,
    ) -> Response<AdminBody> {
        self.counts.requests.increment(1);
        if let Err(refused) = self.guard.check(head, !body.is_end_stream(), peer) {
            self.counts.refused[refused as usize].increment(1);
            return refusal(refused);
        }
        if is_order(head) {
            return self.order(head, body, peer).await;
        }
        let path = head.uri.path();
        if let Some((kind, file)) = page::file(path) {
            return response(StatusCode::OK, kind, file);
        }
        let query = head.uri.query().unwrap_or_default();
        match path {
            "/healthz" => response(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => self.readiness(),
            "/metrics" => self.metrics(),
            "/api/events" => self.events(head, watching),
            "/api/history" => self.history_of(query),
            "/api/client" => self.client(query),
            "/api/clients" => self.clients(query),
            ORDERS => json(&self.overrides()),
            "/api/top" => self.top(query),
            "/api/peers" => self.peers(),
            "/api/store" => self.store(),
            "/api/setup" => json(&setup::snapshot(&self.sources, *self.readiness.lock())),
            "/api/config" => response(StatusCode::OK, "application/yaml", (self.sources.show)()),
            _ => response(StatusCode::NOT_FOUND, TEXT, NOT_FOUND),
        }
    }

    fn events(&self, head: &Parts, watching: &WatcherSlot) -> Response<AdminBody> {
        if head.method == Method::HEAD {
            return response(StatusCode::OK, EVENTS, "");
        }
        let Some((feed, watcher)) = self.watch() else {
            let mut full = response(StatusCode::SERVICE_UNAVAILABLE, TEXT, TOO_MANY_WATCHERS);
            full.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("10"));
            return full;
        };
        *watching.lock() = Some(watcher);
        let mut events = response(StatusCode::OK, EVENTS, "");
        *events.body_mut() = AdminBody::Right(feed);
        events
    }

    fn history_of(&self, query: &str) -> Response<AdminBody> {
        match pairs(query).ok().and_then(|pairs| seconds(&pairs)) {
            Some(seconds) => response(StatusCode::OK, JSON, self.history(seconds)),
            None => response(StatusCode::BAD_REQUEST, TEXT, HISTORY_FAULT),
        }
    }

    fn client(&self, query: &str) -> Response<AdminBody> {
        let Ok(pairs) = pairs(query) else {
            return response(StatusCode::BAD_REQUEST, TEXT, CLIENT_FAULT);
        };
        let value = |wanted| value(&pairs, wanted);
        let hash = value("id").and_then(observe::hash);
        let (Some(door), Some(limit), Some(hash)) = (value("door"), value("limit"), hash) else {
            return response(StatusCode::BAD_REQUEST, TEXT, CLIENT_FAULT);
        };
        response(StatusCode::OK, JSON, self.client_history(&ClientKey::new(door, limit, hash)))
    }

    fn clients(&self, query: &str) -> Response<AdminBody> {
        let Ok(pairs) = pairs(query) else {
            return response(StatusCode::BAD_REQUEST, TEXT, HISTORY_FAULT);
        };
        let Some(seconds) = seconds(&pairs) else {
            return response(StatusCode::BAD_REQUEST, TEXT, HISTORY_FAULT);
        };
        match self.shares(value(&pairs, "door"), value(&pairs, "limit"), seconds) {
            Some(chart) => json(&chart),
            None => response(StatusCode::NOT_FOUND, TEXT, NO_WORK),
        }
    }

    /// Carries out an order. Answers with the list of all overrides.
    async fn order(&self, head: &Parts, body: Incoming, peer: IpAddr) -> Response<AdminBody> {
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
        if !kind.trim().eq_ignore_ascii_case(JSON) {
            self.counts.refused[AccessError::Body as usize].increment(1);
            return response(StatusCode::UNSUPPORTED_MEDIA_TYPE, TEXT, NO_JSON);
        }
        let body = Limited::new(body, ORDER_BYTES_MAX).collect();
        let Ok(Ok(body)) = tokio::time::timeout(ORDER_TIMEOUT, body).await else {
            self.counts.refused[AccessError::Body as usize].increment(1);
            let mut long = response(StatusCode::PAYLOAD_TOO_LARGE, TEXT, NO_ORDER);
            long.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return long;
        };
        match self.act(&body.to_bytes(), peer) {
            Ok(()) => json(&self.overrides()),
            Err(fault) => {
                let status = match fault {
                    OrderError::Limit
                    | OrderError::Client
                    | OrderError::Group
                    | OrderError::Override(_) => StatusCode::NOT_FOUND,
                    OrderError::Full(_) | OrderError::Door | OrderError::Action(_) => {
                        StatusCode::CONFLICT
                    }
                    _ => StatusCode::BAD_REQUEST,
                };
                response(status, TEXT, format!("{fault}\n"))
            }
        }
    }

    fn readiness(&self) -> Response<AdminBody> {
        match *self.readiness.lock() {
            ReadinessStage::Ready => response(StatusCode::OK, TEXT, "ready\n"),
            ReadinessStage::Starting => {
                response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n")
            }
            ReadinessStage::Draining => {
                response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n")
            }
        }
    }

    fn metrics(&self) -> Response<AdminBody> {
        let observed = observe::metrics(&self.sources, *self.readiness.lock());
        let text = prometheus::text(self.sources.watch.registry(), &observed);
        response(StatusCode::OK, prometheus::CONTENT_TYPE, text)
    }

    fn top(&self, query: &str) -> Response<AdminBody> {
        let query = match TopQuery::parse(query) {
            Ok(query) => query,
            Err(fault) => {
                return response(StatusCode::BAD_REQUEST, TEXT, format!("{fault}\n"));
            }
        };
        json(&observe::snapshot(&self.sources, &query))
    }

    fn peers(&self) -> Response<AdminBody> {
        match self.sources.watch.peers.read() {
            Some(report) => json(&report),
            None => response(StatusCode::NOT_FOUND, TEXT, NO_PEERS),
        }
    }

    fn store(&self) -> Response<AdminBody> {
        match self.sources.watch.store.read() {
            Some(report) => json(&report),
            None => response(StatusCode::NOT_FOUND, TEXT, NO_STORE),
        }
    }
}

const EVENTS: &str = "text/event-stream";
const TOO_MANY_WATCHERS: &str = "too many open event streams; close another page, or use \
                                 /api/top\n";
const HISTORY_FAULT: &str = "seconds must be a whole number from 1 to 3600\n";
const CLIENT_FAULT: &str = "send door=, limit= and id= with the values from /api/top\n";
const NO_WORK: &str = "no door with a backend has such a limit that counts work; /api/top lists \
                       all limits\n";
const NO_JSON: &str = "an order must be application/json\n";
const NO_ORDER: &str = "an order must have at most 4096 bytes and arrive within 5 seconds\n";
const NO_STORE: &str = "this instance uses no store: its configuration has no section `store`\n";
const NOT_FOUND: &str = "unknown path; known are / /healthz /readyz /metrics /api/top /api/events \
                         /api/history /api/client /api/clients /api/overrides /api/peers \
                         /api/store /api/setup /api/config\n";
const NO_PEERS: &str = "this instance counts alone: its configuration has no section `peers`\n";

/// The value of the first pair with this name.
fn value<'a>(pairs: &'a [(&str, String)], wanted: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str())
}

/// The seconds that a query asks for, an hour if it does not say; `None` if they are no number in
/// the range.
fn seconds(pairs: &[(&str, String)]) -> Option<u64> {
    let asked = value(pairs, "seconds");
    let seconds = asked.map_or(Some(HISTORY_SECS_MAX), |value| value.parse().ok());
    seconds.filter(|seconds| (1..=HISTORY_SECS_MAX).contains(seconds))
}

fn json(value: &impl serde::Serialize) -> Response<AdminBody> {
    match serde_json::to_string(value) {
        Ok(json) => response(StatusCode::OK, JSON, json + "\n"),
        Err(error) => {
            let text = format!("{error}\n");
            response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, text)
        }
    }
}

fn refusal(refused: AccessError) -> Response<AdminBody> {
    let (status, text) = refused.answer();
    let mut response = response(status, TEXT, text);
    let (name, value) = match refused {
        AccessError::Method => (ALLOW, "GET, HEAD"),
        AccessError::Token => (WWW_AUTHENTICATE, "Bearer"),
        AccessError::Body | AccessError::HostCount | AccessError::Host | AccessError::Origin => {
            (CONNECTION, "close")
        }
    };
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::Left(Full::new(body.into())));
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
