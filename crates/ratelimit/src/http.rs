//! The ports beside gRPC: JSON and health checks, the debug port, and metrics for Prometheus.
//!
//! One thread of its own serves all of them. They do not delay gRPC calls, apart from decisions
//! requested as JSON, which use the same counters. Which port serves which paths is defined in
//! [`PortPurpose`].

use super::decide::{DecisionBuffers, RatelimitDecider};
use super::json;
use super::metrics;
use super::metrics::rename::MetricRenamer;
use super::metrics::traces::TracedCall as Traced;
use super::server_tls::LiveTls;
use super::wire::view::RequestView;
use super::wire::{Code, ProtoPackage};
use bytes::Bytes;
use evenkeel_grpc::worker;
use evenkeel_serve::handover::HandoverSignal;
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::otlp::trace::Tracer;
use evenkeel_telemetry::registry::Counter;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const JSON_PATH: &str = "/json";
/// The maximum length of a request body, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The maximum number of connections at once on each port; further ones wait.
const CONNECTIONS_MAX: usize = 1_024;
/// The time limit for the head of a request, also on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The conditions under which load balancers may send callers here.
#[derive(Default)]
pub struct RatelimitHealth {
    /// Whether the process is shutting down.
    pub draining: AtomicBool,
    /// Whether the service is unhealthy while there are no rules of any domain.
    pub needs_rules: bool,
    /// If set, the service is unhealthy while this store has no working connection.
    pub needs_store: Option<Arc<RedisStore>>,
}

impl RatelimitHealth {
    /// Whether the service is healthy: it is not draining, and has the rules and the store that it
    /// needs.
    pub fn is_good(&self, decider: &RatelimitDecider) -> bool {
        let domains = || decider.rules.load().as_ref().map_or(0, |rules| rules.domains());
        let store = self.needs_store.as_ref().is_none_or(|store| store.counts.is_good());
        !self.draining.load(Relaxed) && (!self.needs_rules || domains() > 0) && store
    }
}

#[derive(Clone, Debug)]
pub enum PortPurpose {
    /// Decisions at `/json`, and health checks at `/healthcheck`.
    Json,
    /// The rules in force at `/rlconfig`, and the metrics at `/stats`.
    Debug,
    /// Metrics at this path. The second field renames them; without it they have the reference
    /// server's names.
    Prometheus(String, Option<Arc<Mutex<MetricRenamer>>>),
}

/// One port with everything that it serves.
pub struct HttpPort {
    pub site: PortPurpose,
    pub decider: Arc<RatelimitDecider>,
    /// Answers health checks.
    pub health: Arc<RatelimitHealth>,
    /// The TLS configuration; `None` if the port serves plain HTTP.
    pub tls: Option<LiveTls>,
    /// The time limit for a TLS handshake.
    pub handshake: Duration,
    /// Connections on which TLS failed to start within the time limit.
    pub bad: Counter,
    /// Records traces of decisions, if tracing is on.
    pub tracer: Option<Tracer>,
    /// The lane of this thread to the store, if there is a store.
    pub lane: Option<Rc<StoreLane>>,
    /// Whether a successor process accepts connections instead.
    pub passed: HandoverSignal,
}

type HttpAnswer = Response<Full<Bytes>>;

impl HttpPort {
    /// Accepts connections until it is dropped or a successor process takes over.
    pub async fn accept(self: Rc<Self>, listener: TcpListener) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut passed = self.passed.clone();
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = passed.wait() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let port = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        port.greet(stream).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(target: "evenkeel::ratelimit", %error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn greet(self: Rc<Self>, stream: TcpStream) {
        let Some(tls) = &self.tls else { return self.connection(stream).await };
        let config = Arc::clone(&tls.load().http);
        let accepted = worker::accept_tls(config, stream, self.handshake, &self.bad).await;
        if let Some(stream) = accepted {
            self.connection(stream).await;
        }
    }

    async fn connection(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| {
            let port = Rc::clone(&self);
            async move {
                let mut answer = port.answer(request).await;
                if port.passed.has_passed() {
                    // The caller's next request goes to the successor process.
                    answer
                        .headers_mut()
                        .insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        // An error ends the connection and concerns only its caller.
        let _ = connection.await;
    }

    async fn answer(&self, request: Request<Incoming>) -> HttpAnswer {
        match (&self.site, request.uri().path()) {
            (PortPurpose::Json, JSON_PATH) => {
                let method = request.method().clone();
                let traced = self.tracer.as_ref().and_then(|tracer| {
                    let name = format!("{method} {JSON_PATH}");
                    Traced::begin(tracer, request.headers(), &name, self.decider.now())
                });
                let answer = self.decide(request, traced.as_ref()).await;
                if let Some(traced) = traced {
                    let status = answer.status().as_u16();
                    traced.end_http(method.as_str(), JSON_PATH, status, self.decider.now());
                }
                answer
            }
            (PortPurpose::Json, "/healthcheck") => match self.health.is_good(&self.decider) {
                true => text(StatusCode::OK, "OK"),
                false => text(StatusCode::INTERNAL_SERVER_ERROR, ""),
            },
            (PortPurpose::Debug, "/") => text(StatusCode::OK, DEBUG_ENDPOINTS),
            (PortPurpose::Debug, "/rlconfig") => {
                let rules = self.decider.rules.load();
                text(StatusCode::OK, rules.as_ref().map(|rules| rules.dump()).unwrap_or_default())
            }
            (PortPurpose::Debug, "/stats") => text(StatusCode::OK, metrics::lines(&self.decider)),
            (PortPurpose::Prometheus(path, renamed), asked) if path == asked => {
                let figures = match renamed {
                    None => metrics::prometheus(&self.decider),
                    Some(renamed) => {
                        metrics::prometheus_renamed(&self.decider, &mut renamed.lock())
                    }
                };
                let mut answer = text(StatusCode::OK, figures);
                let kind = HeaderValue::from_static(evenkeel_telemetry::prometheus::CONTENT_TYPE);
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                answer
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    async fn decide(&self, request: Request<Incoming>, traced: Option<&Traced<'_>>) -> HttpAnswer {
        // As with the reference server, any method is accepted, but a body is required.
        let bad = || text(StatusCode::BAD_REQUEST, "Bad Request\n");
        if request.method() == Method::CONNECT {
            return bad();
        }
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
        let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return bad(),
        };
        let request = match json::request(&body) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(target: "evenkeel::ratelimit", %error, "not answered");
                return bad();
            }
        };
        let view = RequestView::of(&request);
        let began = self.decider.now();
        let decided = match &self.lane {
            Some(lane) => self.decider.ask(&view, ProtoPackage::V3, lane).await,
            None => self.decider.decide(&view, ProtoPackage::V3, &mut DecisionBuffers::default()),
        };
        if let Some(traced) = traced {
            traced.decided(&view, &decided, (began, self.decider.now()));
        }
        let Ok(response) = decided else { return bad() };
        let status = match response.overall_code() {
            Code::Ok => StatusCode::OK,
            Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
            Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut answer = text(status, json::response(&response).to_string());
        let kind = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        answer
    }
}

const DEBUG_ENDPOINTS: &str = "/rlconfig: the rules in force, one per line\n/stats: the counters \
                               of every rule\n";

fn text(status: StatusCode, text: impl Into<Bytes>) -> HttpAnswer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
