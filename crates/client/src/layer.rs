//! A layer for HTTP services with tower: it asks about each request, and answers those that are
//! refused. A service with this layer needs no proxy in front of it.
//!
//! A `RequestGate` decides. The `LineClient` asks a line door, so that all services of a machine
//! count together, and refused requests get 429; `evenkeel_embed` has gates that decide within the
//! process. The name of a request is chosen by the code that creates the layer: there are no
//! trusted proxies and no addresses here. A request for which there is no answer passes.

use super::{LineAnswer, LineClient};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// Decides whether a request with the name `N` may run.
pub trait RequestGate<N>: Clone + Send + 'static {
    /// The status of the answer to a refused request.
    const REFUSED: StatusCode;

    /// Waits until a request with the name `name` may run. The error is how long it has to wait if
    /// it may not, zero if unknown.
    fn admit(&self, name: N) -> impl Future<Output = Result<(), Duration>> + Send;
}

impl RequestGate<Vec<u8>> for LineClient {
    const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

    async fn admit(&self, name: Vec<u8>) -> Result<(), Duration> {
        match self.ask(&name).await {
            LineAnswer::Refused => Err(Duration::ZERO),
            LineAnswer::Served | LineAnswer::Unanswered => Ok(()),
        }
    }
}

/// The layer. `T` returns the name of a request. If it returns `None`, the request passes without a
/// query.
///
/// ```no_run
/// use evenkeel_client::layer::EvenkeelLayer;
/// use evenkeel_client::LineClient;
/// use http::{Request, Response};
/// use tower_layer::Layer;
/// use tower_service::Service;
///
/// /// The service behind the limits of a line door. Each user has an account; a request without a
/// /// user passes.
/// fn limited<S>(service: S, client: LineClient) -> impl Service<Request<String>, Error = S::Error>
/// where
///     S: Service<Request<String>, Response = Response<String>> + Clone + Send + 'static,
///     S::Future: Send,
/// {
///     let user = |request: &Request<String>| {
///         let user = request.headers().get("x-user")?;
///         Some([b"api:", user.as_bytes()].concat())
///     };
///     EvenkeelLayer::new(client, user).layer(service)
/// }
/// ```
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
    G: RequestGate<N> + Sync,
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

fn refused<R: Default>(status: StatusCode, wait: Duration) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    // Whole seconds, rounded up; a client that is told 0 would ask again at once.
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let seconds = HeaderValue::from(seconds.max(1));
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}
