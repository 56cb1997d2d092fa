//! A layer for HTTP services with tower: it asks about each request, and answers refused ones with
//! 429. A service with this layer needs no proxy in front of it.
//!
//! It asks either a line door (`Client`), so that all services of a machine count together, or an
//! engine in its own process. The tag of a request is chosen by the code that creates the layer:
//! there are no trusted proxies and no addresses here. A request for which there is no answer
//! passes.

use super::{Answer, Client};
use crate::clock::Clock;
use crate::config;
use crate::config::fault::{Fault, Faults, Place};
use crate::engine::tags::{TagLane, Tags};
use crate::watch::Watch;
use evenkeel_core::key::Seed;
use evenkeel_core::units::Nanos;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use rustix::rand::{GetRandomFlags, getrandom};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// The limiter that is asked.
#[derive(Clone)]
pub enum Judge {
    /// A line door.
    Door(Client),
    /// An engine in this process.
    Here(Arc<Here>),
}

/// An engine in this process, with limits from a configuration.
pub struct Here {
    lane: TagLane,
}

impl Here {
    /// Creates an engine with the limits of the `line` section of a configuration. The addresses in
    /// it are ignored.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration; or the system gives no random numbers.
    pub fn new(configuration: &str) -> Result<Arc<Here>, Faults> {
        let name = "configuration of the layer";
        let fault = |what| Faults::new(name, vec![Fault::new(Place { line: 1, column: 1 }, what)]);
        let config = config::parse(name, configuration.as_bytes(), 1.0)?;
        let Some(mut line) = config.settings.line else {
            let what = "there is no section `line`, whose limits are to be used";
            return Err(fault(what.to_owned()));
        };
        let seed = seed().map_err(|why| fault(format!("no random numbers: {why}")))?;
        config::source::read_limits(&mut line)?;
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let tags = Tags::new(&line, 1, seed, clock, watch);
        Ok(Arc::new(Here { lane: tags.lane(0) }))
    }
}

/// A secret of this process, from the system's randomness.
pub(super) fn seed() -> io::Result<Seed> {
    let mut seed = [0; 16];
    match getrandom(&mut seed, GetRandomFlags::empty())? {
        16 => Ok(Seed(seed)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Judge {
    /// Asks about `tag`. If it is refused, returns how long it has to wait, zero if unknown.
    async fn refuses(&self, tag: &[u8]) -> Option<Nanos> {
        match self {
            Judge::Door(client) => {
                (client.ask(tag).await == Answer::Refused).then_some(Nanos::ZERO)
            }
            Judge::Here(here) => {
                let told = here.lane.batch(None).told(tag, 1)?;
                told.retry
            }
        }
    }
}

/// Decides whether a request with the name `N` may run.
pub trait Gate<N>: Clone + Send + 'static {
    /// The status of the answer to a refused request.
    const REFUSED: StatusCode;

    /// Waits until a request with the name `name` may run. The error is how long it has to wait if
    /// it may not, zero if unknown.
    fn admit(&self, name: N) -> impl Future<Output = Result<(), Nanos>> + Send;
}

impl Gate<Vec<u8>> for Judge {
    const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

    async fn admit(&self, name: Vec<u8>) -> Result<(), Nanos> {
        self.refuses(&name).await.map_or(Ok(()), Err)
    }
}

/// The layer. `T` returns the name of a request. If it returns `None`, the request passes without a
/// query.
#[derive(Clone)]
pub struct EvenkeelLayer<G, T> {
    gate: G,
    name: T,
}

impl<G, T> EvenkeelLayer<G, T> {
    /// Creates a layer that asks `gate` about the name that `name` returns for each request.
    pub fn new(gate: G, name: T) -> EvenkeelLayer<G, T> {
        EvenkeelLayer { gate, name }
    }
}

impl<S, G: Clone, T: Clone> Layer<S> for EvenkeelLayer<G, T> {
    type Service = Throttled<S, G, T>;

    fn layer(&self, inner: S) -> Throttled<S, G, T> {
        Throttled { inner, gate: self.gate.clone(), name: self.name.clone() }
    }
}

/// A service behind the layer.
#[derive(Clone)]
pub struct Throttled<S, G, T> {
    inner: S,
    gate: G,
    name: T,
}

impl<S, G, T, B, R, N> Service<Request<B>> for Throttled<S, G, T>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    G: Gate<N> + Sync,
    T: Fn(&Request<B>) -> Option<N>,
    N: Send + 'static,
    B: Send + 'static,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let name = (self.name)(&request);
        let gate = self.gate.clone();
        // The instance that was ready is the one that must be called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            if let Some(name) = name
                && let Err(wait) = gate.admit(name).await
            {
                return Ok(refused(G::REFUSED, wait));
            }
            inner.call(request).await
        })
    }
}

fn refused<R: Default>(status: StatusCode, wait: Nanos) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    let seconds = HeaderValue::from(wait.retry_after_secs());
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}
