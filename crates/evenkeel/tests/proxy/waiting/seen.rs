//! What an operator sees of strangers and visitors: counts, metrics, and lines of the log.

use super::{NAVIGATE, answer, ask, busy, cookie, next, stage, waits};
use crate::stage::Stage;
use evenkeel_core::units::Cost;
use evenkeel_engine::{VisitorStats, WaitingRoomCounts};
use evenkeel_testing::wait::until;

fn seen(stage: &Stage) -> VisitorStats {
    stage.engine.visitor_stats().expect("a queue")
}

#[test]
fn strangers_and_visitors_are_counted() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let (mut visitor, mut stranger) = (stage.client(), stage.client());
    ask(&mut stranger, "192.0.2.4", "");
    waits(&stage, 1);
    ask(&mut visitor, "192.0.2.3", NAVIGATE);
    waits(&stage, 2);
    assert_eq!(seen(&stage).strangers_waiting, 2);
    let page = visitor.message();
    let now = seen(&stage);
    assert_eq!((now.strangers_waiting, now.pages), (1, 1));
    assert_eq!((now.waiting_room.new, now.waiting_room.returned), (1, 0));
    let ticket = cookie(&page).expect("a ticket");
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: {ticket}\r\n"));
    waits(&stage, 2);
    assert_eq!(seen(&stage).visitors_waiting, 1);
    assert_eq!(visitor.message().status(), 503);
    let now = seen(&stage);
    assert_eq!((now.pages, now.waiting_room.returned), (2, 1));
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: {ticket}\r\n"));
    waits(&stage, 2);
    let before = now.strangers_cost;
    answer(&mut backend, "");
    let (mut backend, _) = next(&stage, backend);
    answer(&mut backend, "");
    assert_eq!(visitor.message().status(), 200);
    let (mut backend, _) = next(&stage, backend);
    answer(&mut backend, "");
    assert_eq!(stranger.message().status(), 200);
    until("the cost is known", || seen(&stage).strangers_cost > before);
    let now = seen(&stage);
    assert!(now.newcomer_wait.is_some_and(|wait| wait.as_secs_f64() > 3.0));
    assert_eq!(stage.watch.newcomer_waits.counts().iter().sum::<u64>(), 1);
    assert!(now.pressure_since.is_some());
    assert_eq!(now.pressure_cost, now.strangers_cost.minus(Cost(9_000_000_000)));
    // Without another request, the visitor is not expected any more, and the pressure ends.
    until("nothing is left", || {
        let now = seen(&stage);
        now.waiting_room == WaitingRoomCounts::default() && now.pressure_since.is_none()
    });
    assert_eq!(seen(&stage).pressure_cost, Cost::ZERO);
}
