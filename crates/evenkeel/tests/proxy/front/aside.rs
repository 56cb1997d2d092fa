//! Streams that wait for their client keep a connection to the backend but no slot. Their number is
//! bounded by half of the maximum number of connections.

use super::http2::{Exchange, Http2, Part};
use crate::stage::Stage;
use evenkeel_proxy::threads;
use evenkeel_testing::wait::until;
use http::Request;
use std::cell::Cell;

/// A call that never sends its body.
fn call(client: &Http2) -> Exchange {
    let head = Request::post("http://site.example/").header("content-type", "application/grpc");
    client.begin(head)
}

#[test]
fn they_have_half_of_the_room_and_the_connection_with_most_of_them_makes_some() {
    // Each thread has room for 32 such streams.
    let stage = Stage::open(|proxy| proxy.bounds.connections = 64 * threads());
    let address = stage.door.addresses()[0];
    let greedy = Http2::connect(address);
    let calls: Vec<_> = (0..40).map(|_| call(&greedy)).collect();
    let failed = Cell::new(0);
    let failed_so_far = || {
        let ended = |call: &&Exchange| matches!(call.try_next(), Some(Part::Failed));
        failed.set(failed.get() + calls.iter().filter(ended).count());
        failed.get()
    };
    until("those without room are ended", || failed_so_far() == 8);
    until("the others are left", || stage.door.connections() == 1 + 32);
    // Some of these connections belong to the same thread.
    let modest: Vec<_> = (0..12 * threads()).map(|_| Http2::connect(address)).collect();
    let kept: Vec<_> = modest.iter().map(call).collect();
    until("they are given room", || failed_so_far() > 8);
    assert!(kept.iter().all(|call| call.try_next().is_none()));
    drop((calls, kept, greedy, modest));
    until("all is given back", || stage.door.connections() == 0);
}
