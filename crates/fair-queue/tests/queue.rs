//! The queue and the layer, with the clock of tokio paused: order, refusals, and slots that come
//! back whatever becomes of a request.

use bytes::Bytes;
use evenkeel_fair_queue::{
    FairQueue, FairQueueLayer, FairQueueSettings, FairQueueStats, QueueCost, RefusalCause, Slots,
    WaitingSlot,
};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::future::{Future, Ready, pending, ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::advance;
use tower_layer::Layer;
use tower_service::Service;

const SECOND: Duration = Duration::from_secs(1);

fn queue(slots: usize) -> FairQueue {
    queue_with(FairQueueSettings { slots: Slots::Fixed(slots), ..Default::default() })
}

fn queue_with(settings: FairQueueSettings) -> FairQueue {
    FairQueue::new(settings)
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn counts(queue: &FairQueue) -> (usize, usize) {
    let FairQueueStats { waiting, running, .. } = queue.stats();
    (waiting, running)
}

/// Ends requests one after the other, a second each, and returns the order in which those in
/// `waiting` have run.
async fn order(waiting: Vec<(&'static str, WaitingSlot)>) -> Vec<&'static str> {
    let (mut waiting, mut order) = (waiting, Vec::new());
    while !waiting.is_empty() {
        let mut next = None;
        for (at, (name, place)) in waiting.iter_mut().enumerate() {
            if let Poll::Ready(slot) = poll(place) {
                next = Some((at, *name, slot.expect("a slot")));
            }
        }
        let (at, name, slot) = next.expect("somebody's turn");
        drop(waiting.remove(at));
        order.push(name);
        advance(SECOND).await;
        drop(slot);
    }
    order
}

#[tokio::test(start_paused = true)]
async fn a_client_with_many_requests_does_not_keep_the_others_waiting() {
    let queue = queue(1);
    let first = queue.enter(b"heavy", "work").await.expect("a slot");
    let mut waiting: Vec<_> = (0..20).map(|_| ("heavy", queue.enter(b"heavy", "work"))).collect();
    waiting.push(("light", queue.enter(b"light", "work")));
    waiting.push(("small", queue.enter(b"small", "work")));
    advance(SECOND).await;
    drop(first);
    let order = order(waiting).await;
    let place = |name| order.iter().position(|one| *one == name).expect("it ran");
    assert!(place("light") < 4 && place("small") < 4, "{order:?}");
    assert_eq!(counts(&queue), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_used_more_than_its_share_waits_behind_the_others() {
    let settings = FairQueueSettings { burst: SECOND, ..Default::default() };
    let queue = queue_with(FairQueueSettings { slots: Slots::Fixed(1), ..settings });
    let mut debt = queue.enter(b"heavy", "work").await.expect("a slot");
    debt.set_cost(100 * SECOND);
    drop(debt);
    let running = queue.enter(b"other", "work").await.expect("a slot");
    let mut waiting = vec![("heavy", queue.enter(b"heavy", "work"))];
    waiting.extend((0..5).map(|_| ("light", queue.enter(b"light", "work"))));
    advance(Duration::from_millis(1)).await;
    drop(running);
    assert_eq!(order(waiting).await[0], "light");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_too_long_is_refused() {
    let settings = FairQueueSettings { wait_max: 5 * SECOND, ..Default::default() };
    let queue = queue_with(FairQueueSettings { slots: Slots::Fixed(1), ..settings });
    let held = queue.enter(b"a", "work").await.expect("a slot");
    // Time passes by itself while everything waits for a timer.
    let refusal = queue.enter(b"b", "work").await.map(drop).expect_err("a refusal");
    assert_eq!(refusal.cause, RefusalCause::WaitMax);
    assert_eq!(refusal.to_string(), "the fair queue refuses the request because of `wait_max`");
    assert_eq!((queue.stats().refused, counts(&queue)), (1, (0, 1)));
    drop(held);
    assert_eq!(counts(&queue), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_dropped_goes_to_the_next_one() {
    let queue = queue(1);
    let held = queue.enter(b"a", "work").await.expect("a slot");
    let (mut gone, mut next) = (queue.enter(b"b", "work"), queue.enter(b"c", "work"));
    assert!(poll(&mut gone).is_pending() && poll(&mut next).is_pending());
    drop(held);
    // It has a slot that it has not seen.
    assert_eq!(counts(&queue), (1, 1));
    drop(gone);
    assert!(poll(&mut next).is_ready());
    assert_eq!(counts(&queue), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn impossible_settings_are_replaced() {
    let settings = FairQueueSettings {
        slots: Slots::Fixed(0),
        wait_max: Duration::MAX,
        len_max: 0,
        share: f64::NAN,
        burst: Duration::ZERO,
        clients_max: 0,
    };
    let queue = queue_with(settings);
    let held = queue.enter(b"", "").await.expect("a slot");
    let refusal = queue.enter(b"", "").await.map(drop).expect_err("a refusal");
    assert_eq!(refusal.cause, RefusalCause::LenMax);
    drop(held);
    let auto = queue_with(FairQueueSettings { share: -1.0, ..Default::default() });
    assert!(auto.stats().slots >= 1 && auto.enter(b"", "").await.is_ok());
}

/// Random requests come, end, are polled and are dropped: no more than the slots run, a waiting
/// request exists only while no slot is free, and in the end all slots are free.
#[test]
fn fuzz_slots_are_neither_lost_nor_made_up() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    evenkeel_fuzz::fuzz().with_type::<(u8, Vec<(u8, u8)>)>().for_each(|(slots, steps)| {
        runtime.block_on(async {
            let slots = usize::from(slots % 4 + 1);
            let queue = queue(slots);
            let (mut waiting, mut held) = (Vec::new(), Vec::new());
            for (what, which) in steps {
                let which = usize::from(*which);
                match what % 5 {
                    0 | 1 => waiting.push(queue.enter(&[*what / 64], "work")),
                    2 if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                    3 if !waiting.is_empty() => {
                        drop(waiting.swap_remove(which % waiting.len()));
                    }
                    _ => advance(Duration::from_millis(which as u64)).await,
                }
                let mut still = Vec::new();
                for mut place in waiting {
                    match poll(&mut place) {
                        Poll::Ready(result) => held.extend(result),
                        Poll::Pending => still.push(place),
                    }
                }
                waiting = still;
                assert_eq!(counts(&queue), (waiting.len(), held.len()));
                assert!(held.len() <= slots && (waiting.is_empty() || held.len() == slots));
            }
            drop((waiting, held));
            assert_eq!(counts(&queue), (0, 0));
        });
    });
}

type Full200 = Response<Full<Bytes>>;

/// A service that answers at once, or never.
#[derive(Clone)]
struct Backend {
    answers: bool,
}

impl Service<Request<()>> for Backend {
    type Response = Full200;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Full200, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        if !self.answers {
            return Box::pin(pending());
        }
        let mut response = Response::new(Full::from("page"));
        response.extensions_mut().insert(QueueCost(100 * SECOND));
        Box::pin(ready(Ok(response)))
    }
}

fn client(request: &Request<()>) -> Option<String> {
    request.uri().query().map(str::to_owned)
}

fn request(client: &str) -> Request<()> {
    Request::get(format!("/page?{client}")).body(()).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_held_to_the_end_of_the_body() {
    let queue = queue(1);
    let mut service = FairQueueLayer::new(queue.clone(), client).layer(Backend { answers: true });
    let response = service.call(request("a")).await.expect("a response");
    assert_eq!(counts(&queue), (0, 1));
    let mut waits = pin!(service.call(request("b")));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "page");
    let response = waits.await.expect("a response");
    assert_eq!((response.status(), counts(&queue)), (StatusCode::OK, (0, 1)));
    drop(response);
    assert_eq!(counts(&queue), (0, 0));
    // Its response has stated a cost, so its client is in debt.
    let held = queue.enter(b"c", "work").await.expect("a slot");
    let waiting = vec![("a", queue.enter(b"a", "work")), ("d", queue.enter(b"d", "work"))];
    drop(held);
    assert_eq!(order(waiting).await, ["d", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_gives_back_what_it_has() {
    let queue = queue(1);
    let mut service = FairQueueLayer::new(queue.clone(), client).layer(Backend { answers: false });
    let (running, waiting) = (service.call(request("a")), service.call(request("b")));
    assert_eq!(counts(&queue), (1, 1));
    drop(waiting);
    assert_eq!(counts(&queue), (0, 1));
    drop(running);
    assert_eq!(counts(&queue), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_client_passes_and_a_refused_one_gets_503() {
    let settings = FairQueueSettings { len_max: 1, ..Default::default() };
    let queue = queue_with(FairQueueSettings { slots: Slots::Fixed(1), ..settings });
    let mut service = FairQueueLayer::new(queue.clone(), client).layer(Backend { answers: true });
    let held = queue.enter(b"z", "work").await.expect("a slot");
    let free = Request::get("/health").body(()).expect("a request");
    assert_eq!(service.call(free).await.expect("a response").status(), StatusCode::OK);
    let _waits = service.call(request("a"));
    let refused = service.call(request("a")).await.expect("a response");
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let after: u64 = refused.headers()["retry-after"].to_str().expect("text").parse().expect("s");
    assert!((1..=30).contains(&after), "{after}");
    drop(held);
}

/// A body that breaks off.
#[derive(Default)]
struct BrokenBody;

impl Body for BrokenBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(Err("broken")))
    }
}

/// A service that fails for one client. For the others, the body of its response fails.
#[derive(Clone)]
struct Broken;

impl Service<Request<()>> for Broken {
    type Response = Response<BrokenBody>;
    type Error = &'static str;
    type Future = Ready<Result<Response<BrokenBody>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let fails = request.uri().query() == Some("fails");
        ready(if fails { Err("failed") } else { Ok(Response::new(BrokenBody)) })
    }
}

#[tokio::test(start_paused = true)]
async fn failures_give_the_slot_back() {
    let queue = queue(1);
    let mut service = FairQueueLayer::new(queue.clone(), client).layer(Broken);
    assert!(service.call(request("fails")).await.is_err());
    assert_eq!(counts(&queue), (0, 0));
    let response = service.call(request("a")).await.expect("a response");
    let mut body = pin!(response.into_body());
    assert_eq!(counts(&queue), (0, 1));
    assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
    assert_eq!(counts(&queue), (0, 0));
}
