//! The ports beside gRPC: JSON and health, the debug port, and figures for Prometheus.
//!
//! All are answered by one thread of their own; nothing here is in the way of gRPC calls but a
//! decision asked as JSON. Which port may be asked what is in `Site`.

use super::Shown;
use super::decide::{Decider, Package, Room};
use super::figures;
use super::figures::renamed::Renamed;
use super::figures::traces::Call as Traced;
use super::json;
use super::wire::Code;
use super::wire::view::View;
use crate::run::handover::Passed;
use crate::store::redis::{Lane, Store};
use crate::watch::otlp::trace::Tracer;
use arc_swap::ArcSwap;
use bytes::Bytes;
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
use tokio_rustls::TlsAcceptor;

/// Where decisions are asked as JSON.
const JSON: &str = "/json";
/// The longest request, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Connections at once on each port; more wait.
const CONNECTIONS_MAX: usize = 1_024;
/// For a request's head to arrive, also on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// For a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether callers are to be sent here.
#[derive(Default)]
pub struct Health {
    /// The program ends.
    pub draining: AtomicBool,
    /// Without any domain it is not healthy.
    pub needs_rules: bool,
    /// The store without whose connection it is not healthy.
    pub needs_store: Option<Arc<Store>>,
}

impl Health {
    /// Whether all is well.
    #[must_use]
    pub fn is_good(&self, decider: &Decider) -> bool {
        let domains = || decider.rules.load().as_ref().map_or(0, |rules| rules.domains());
        let store = self.needs_store.as_ref().is_none_or(|store| store.is_good());
        !self.draining.load(Relaxed) && (!self.needs_rules || domains() > 0) && store
    }
}

/// What a port is for.
#[derive(Clone, Debug)]
pub enum Site {
    /// `/json` and `/healthcheck`.
    Json,
    /// `/rlconfig` and `/stats`.
    Debug,
    /// Figures, at this path, and what they are called if not as in the reference.
    Prometheus(String, Option<Arc<Mutex<Renamed>>>),
}

/// One port.
pub struct Port {
    /// What it is for.
    pub site: Site,
    /// Who decides.
    pub decider: Arc<Decider>,
    /// What health is told.
    pub health: Arc<Health>,
    /// What is shown to those who connect, if they must speak TLS.
    pub tls: Option<Arc<ArcSwap<Shown>>>,
    /// For them to do so.
    pub handshake: Duration,
    /// Told of decisions.
    pub tracer: Option<Tracer>,
    /// The way to the store, if there is one.
    pub lane: Option<Rc<Lane>>,
    /// Whether somebody else takes connections in.
    pub passed: Passed,
}

type Answer = Response<Full<Bytes>>;

impl Port {
    /// Takes connections until it is dropped.
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
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.load().http));
        let accepted = tokio::time::timeout(self.handshake, acceptor.accept(stream)).await;
        if let Ok(Ok(stream)) = accepted {
            self.connection(stream).await;
        }
    }

    async fn connection(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| {
            let port = Rc::clone(&self);
            async move {
                let mut answer = port.answer(request).await;
                if port.passed.is_so() {
                    // The next question is the successor's.
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
        // What goes wrong on a connection is the caller's business and ends with it.
        let _ = connection.await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match (&self.site, request.uri().path()) {
            (Site::Json, JSON) => {
                let method = request.method().clone();
                let traced = self.tracer.as_ref().and_then(|tracer| {
                    let name = format!("{method} {JSON}");
                    Traced::begin(tracer, request.headers(), &name, self.decider.now())
                });
                let answer = self.decide(request, traced.as_ref()).await;
                if let Some(traced) = traced {
                    let status = answer.status().as_u16();
                    traced.end_http(method.as_str(), JSON, status, self.decider.now());
                }
                answer
            }
            (Site::Json, "/healthcheck") => match self.health.is_good(&self.decider) {
                true => text(StatusCode::OK, "OK"),
                false => text(StatusCode::INTERNAL_SERVER_ERROR, ""),
            },
            (Site::Debug, "/") => text(StatusCode::OK, ENDPOINTS),
            (Site::Debug, "/rlconfig") => {
                let rules = self.decider.rules.load();
                text(StatusCode::OK, rules.as_ref().map(|rules| rules.dump()).unwrap_or_default())
            }
            (Site::Debug, "/stats") => text(StatusCode::OK, figures::lines(&self.decider)),
            (Site::Prometheus(path, renamed), asked) if path == asked => {
                let figures = match renamed {
                    None => figures::prometheus(&self.decider),
                    Some(renamed) => figures::mapped(&self.decider, &mut renamed.lock()),
                };
                let mut answer = text(StatusCode::OK, figures);
                let kind = HeaderValue::from_static(crate::watch::prometheus::CONTENT_TYPE);
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                answer
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    async fn decide(&self, request: Request<Incoming>, traced: Option<&Traced<'_>>) -> Answer {
        // Any method will do, as with the reference, but a body there must be.
        let bad = || text(StatusCode::BAD_REQUEST, "Bad Request\n");
        if request.method() == Method::CONNECT {
            return bad();
        }
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
        let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return bad(),
        };
        let Ok(request) = json::request(&body) else { return bad() };
        let view = View::of(&request);
        let began = self.decider.now();
        let decided = match &self.lane {
            Some(lane) => self.decider.ask(&view, Package::V3, lane).await,
            None => self.decider.decide(&view, Package::V3, &mut Room::default()),
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

const ENDPOINTS: &str = "/rlconfig: the rules that are in force, one a line\n\
                         /stats: the figures of every rule\n";

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
