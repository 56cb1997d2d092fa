//! The client of turns for Rust, before the real program. That of Node has its tests in
//! `clients/node`, that of Python and the wire have them in `turns`.

use crate::stage::LineServer;
use evenkeel_client::LineAddress;
use evenkeel_client::turns::{TurnClient, TurnError, TurnOptions, TurnTimeouts};
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::until_async;
use std::time::Duration;

/// Waits for answers as long as a slow machine may take.
const PATIENT: TurnTimeouts =
    TurnTimeouts { connect: Duration::from_secs(60), answer: Duration::from_secs(60) };
/// The turn may be waited for as long as the door allows.
const ANY: TurnOptions = TurnOptions { cost: None, wait: None };

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime").block_on(test)
}

fn waiting(program: &LineServer) -> u64 {
    program.metric("evenkeel_waiting_requests{door=\"turns\"}")
}

fn tcp(program: &LineServer) -> TurnClient {
    let address = format!("tcp://{}", program.lines).parse().expect("an address");
    TurnClient::new(address, PATIENT)
}

#[test]
fn a_turn_is_waited_for_and_given_back() {
    let program = LineServer::start("turns: {slots: 1, wait_max: 1h}");
    let unix = TurnClient::new(LineAddress::Unix(program.socket()), PATIENT);
    run(async {
        for client in [tcp(&program), unix] {
            let held = client.take(b"a tag", &ANY).await.expect("a turn");
            assert!(held.id().is_some());
            let late = TurnOptions { wait: Some(Duration::from_millis(1)), ..ANY };
            let refused = client.take(b"b", &late).await.expect_err("a second turn");
            assert_eq!(refused, TurnError::Late);
            let refused = client.try_take(b"b", None).await.expect_err("a second turn");
            assert_eq!(refused, TurnError::Busy);
            let next = tokio::spawn({
                let client = client.clone();
                async move { client.take(b"b", &ANY).await }
            });
            until_async("it waits", || waiting(&program) == 1).await;
            held.done(Some(Duration::from_millis(250))).await;
            let next = next.await.expect("no panic").expect("a turn");
            next.done(None).await;
        }
    });
    let top = program.get("/api/top?limit=turns");
    assert!(top.contains("a tag"), "{top}");
}

#[test]
fn turns_and_waits_that_are_dropped_are_given_back() {
    let program = LineServer::start("turns: {slots: 1, wait_max: 1h}");
    run(async {
        let client = tcp(&program);
        let held = client.take(b"a", &ANY).await.expect("a turn");
        let gives_up = tokio::spawn({
            let client = client.clone();
            async move { client.take(b"b", &ANY).await }
        });
        until_async("it waits", || waiting(&program) == 1).await;
        gives_up.abort();
        until_async("it does not wait", || waiting(&program) == 0).await;
        drop(held);
        let next = client.take(b"c", &ANY).await.expect("a turn");
        assert!(next.id().is_some());
    });
}

#[test]
fn without_a_door_jobs_run_and_a_door_without_turns_is_an_error() {
    let address = format!("tcp://127.0.0.1:{}", free_port()).parse().expect("an address");
    run(async {
        let alone = TurnClient::new(address, PATIENT);
        let turn = alone.take(b"a", &ANY).await.expect("a turn");
        assert_eq!(turn.id(), None);
        turn.done(None).await;
        let program = LineServer::start("rate: 1/s");
        let refused = tcp(&program).take(b"a", &ANY).await.expect_err("no turn");
        assert_eq!(refused, TurnError::NoTurns);
    });
}

/// A new process of the door answers, although connections of the old one were kept.
#[test]
fn a_door_that_was_started_again_gives_out_turns() {
    let port = free_port();
    let program = LineServer::start_at("turns: {slots: 1}", port);
    let client = tcp(&program);
    let take = async || {
        let turn = client.take(b"a", &ANY).await.expect("a turn");
        let id = turn.id();
        turn.done(None).await;
        id
    };
    run(async {
        assert!(take().await.is_some());
        let _program = program.again();
        assert!(take().await.is_some());
    });
}
