//! The cost of the layer for a request that does not have to wait, beside tower's
//! `ConcurrencyLimit`, which counts requests and knows no clients.
//!
//! `cargo bench -p evenkeel-fair-queue`. Each step calls a service that answers at once, polls the
//! response and drops it. The rows differ in the number of clients that take turns. The fastest of
//! some rounds is shown, because other work on the machine only adds time.

#![allow(missing_docs)]

use bytes::Bytes;
use evenkeel_fair_queue::{FairQueue, FairQueueLayer, FairQueueSettings, Slots};
use http::{Request, Response};
use http_body_util::Full;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tower::limit::ConcurrencyLimit;
use tower_layer::Layer;
use tower_service::Service;

const ROUNDS: usize = 15;
const STEPS: usize = 200_000;

#[derive(Clone)]
struct Backend;

impl Service<Request<()>> for Backend {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Full::from("page"))))
    }
}

/// Nanoseconds for a request of `service`, as requests of `clients` clients come in turn.
fn row<S: Service<Request<()>, Error = Infallible>>(mut service: S, clients: usize) -> f64 {
    let mut cx = Context::from_waker(Waker::noop());
    let names: Vec<_> = (0..clients)
        .map(|n| http::HeaderValue::from_str(&format!("key-of-tenant-{n}")).expect("a value"))
        .collect();
    let rounds = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        for name in names.iter().cycle().take(STEPS) {
            let request = Request::get("/reports/7").header("x-api-key", name);
            let request = request.body(()).expect("a request");
            assert!(service.poll_ready(&mut cx).is_ready());
            let response = pin!(service.call(request)).poll(&mut cx);
            assert!(black_box(response).is_ready());
        }
        started.elapsed().as_nanos() as f64 / STEPS as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn main() {
    let key = |request: &Request<()>| request.headers().get("x-api-key").cloned();
    println!("ns per request        service    + limit    + fair queue");
    for clients in [1, 64, 10_000] {
        let settings = FairQueueSettings { slots: Slots::Fixed(64), ..Default::default() };
        let fair = FairQueueLayer::new(FairQueue::new(settings), key).layer(Backend);
        let bare = row(Backend, clients);
        let limit = row(ConcurrencyLimit::new(Backend, 64), clients) - bare;
        let fair = row(fair, clients) - bare;
        println!("{clients:>6} clients {bare:>13.0} {limit:>10.0} {fair:>15.0}");
    }
}
