//! The tower layer: each request of an HTTP service waits for its turn.
//!
//! The place of a request in the queue is taken when it is called. A free slot needs no allocation
//! and no clone of the service.

use crate::body::SlotBody;
use crate::queue::waiting::WaitingSlot;
use crate::queue::{FairQueue, QueueRefusal, Slot};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// The cost of a request, as an extension of its response: the time of a slot that it has used.
/// Without it, a request costs the time from its turn to the end of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCost(pub Duration);

/// The layer. `K` returns the name of a request's client. If it returns `None`, the request passes
/// without waiting.
///
/// A request that is refused gets 503 with `Retry-After` and an empty body.
#[derive(Clone)]
pub struct FairQueueLayer<K> {
    queue: FairQueue,
    client: K,
}

impl<K> FairQueueLayer<K> {
    /// A layer that lets requests wait in `queue`, in the name that `client` returns.
    pub fn new(queue: FairQueue, client: K) -> FairQueueLayer<K> {
        FairQueueLayer { queue, client }
    }
}

impl<S, K: Clone> Layer<S> for FairQueueLayer<K> {
    type Service = FairQueueService<S, K>;

    fn layer(&self, inner: S) -> FairQueueService<S, K> {
        FairQueueService { inner, queue: self.queue.clone(), client: self.client.clone() }
    }
}

/// A service behind the layer.
#[derive(Clone)]
pub struct FairQueueService<S, K> {
    inner: S,
    queue: FairQueue,
    client: K,
}

impl<S, K, N, B, R> Service<Request<B>> for FairQueueService<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    K: Fn(&Request<B>) -> Option<N>,
    N: AsRef<[u8]>,
    R: Body + Default,
{
    type Response = Response<SlotBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let Some(client) = (self.client)(&request) else {
            return ResponseFuture::running(self.inner.call(request), None);
        };
        let (method, path) = (request.method().as_str(), request.uri().path());
        let mut waiting = self.queue.enter_http(client.as_ref(), method, path);
        match waiting.take_result() {
            Some(Ok(slot)) => ResponseFuture::running(self.inner.call(request), Some(slot)),
            Some(Err(refusal)) => ResponseFuture { step: ResponseStep::Refused { refusal } },
            None => {
                // The instance that was ready is the one that must be called.
                let next = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, next);
                let call = Some(Box::new((inner, request)));
                ResponseFuture { step: ResponseStep::Waits { waiting, call } }
            }
        }
    }
}

pin_project_lite::pin_project! {
    /// The response of a service behind the layer. Dropping it gives back the place or the slot.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        step: ResponseStep<S, B, S::Future>,
    }
}

pin_project_lite::pin_project! {
    #[project = Step]
    enum ResponseStep<S, B, F> {
        Waits { waiting: WaitingSlot, call: Option<Box<(S, Request<B>)>> },
        Runs { #[pin] future: F, slot: Option<Slot> },
        Refused { refusal: QueueRefusal },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    fn running(future: S::Future, slot: Option<Slot>) -> ResponseFuture<S, B> {
        ResponseFuture { step: ResponseStep::Runs { future, slot } }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body + Default,
{
    type Output = Result<Response<SlotBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut step = self.project().step;
        loop {
            let next = match step.as_mut().project() {
                Step::Refused { refusal } => return Poll::Ready(Ok(refused(*refusal))),
                Step::Runs { future, slot } => {
                    let response = ready!(future.poll(cx));
                    let slot = slot.take();
                    return Poll::Ready(response.map(|response| with_slot(response, slot)));
                }
                Step::Waits { waiting, call } => match ready!(Pin::new(waiting).poll(cx)) {
                    Err(refusal) => ResponseStep::Refused { refusal },
                    Ok(slot) => {
                        let Some(call) = call.take() else { return Poll::Pending };
                        let (mut inner, request) = *call;
                        ResponseStep::Runs { future: inner.call(request), slot: Some(slot) }
                    }
                },
            };
            step.set(next);
        }
    }
}

fn with_slot<R: Body>(response: Response<R>, slot: Option<Slot>) -> Response<SlotBody<R>> {
    let cost = response.extensions().get().copied();
    let slot = slot.map(|mut slot| {
        if let Some(QueueCost(cost)) = cost {
            slot.set_cost(cost);
        }
        slot
    });
    response.map(|body| SlotBody::new(body, slot))
}

fn refused<R: Body + Default>(refusal: QueueRefusal) -> Response<SlotBody<R>> {
    let mut response = Response::new(SlotBody::default());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    // Whole seconds, rounded up; with 0, a client would ask again at once.
    let wait = refusal.retry_after;
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    response
}
