//! The end of a connection whose client is slow to read its last answer.

use super::*;
use crate::context::settings::ThreadSettings;
use crate::link::LinkPhase;
use crate::outbox::DeferredStream;
use crate::outbox::tests::{pair, run};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;

const SETTINGS: &[u8] = b"proxy: {listen: 127.0.0.1:1, backend: 'http://127.0.0.1:2'}\n";

/// A client's stream whose client reads nothing: the last bytes that were accepted had no room.
/// Also returns how many bytes were accepted, and the client.
async fn stuck() -> (ClientStream<DeferredStream>, usize, tokio::net::TcpStream) {
    let settings = evenkeel_config::parse("t.yaml", SETTINGS, 1.0).expect("good").settings;
    let settings = ThreadSettings::new(&settings.proxy.expect("a proxy"), &Arc::default());
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    let thread = ThreadContext::new(Rc::new(settings), clock, Arc::default(), watch);
    let (stream, client) = pair(&thread.outbox).await;
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let link = Rc::new(ClientLink::new(peer, false, stream.unsent(), 0));
    link.begin_request();
    let mut stream = ClientStream::new(stream, link, thread);
    let mut cx = Context::from_waker(Waker::noop());
    let mut accepted = 0;
    while let Poll::Ready(count) = Pin::new(&mut stream).poll_write(&mut cx, &[7; 1000]) {
        accepted += count.expect("room");
        stream.thread.outbox.send();
    }
    (stream, accepted, client)
}

#[test]
fn the_time_limit_of_the_end_begins_when_the_answer_is_sent() {
    run(async |_| {
        let (mut stream, accepted, mut client) = stuck().await;
        let link = Rc::clone(&stream.link);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut stream).poll_shutdown(&mut cx).is_pending());
        assert_eq!(link.phase.get(), LinkPhase::Busy);
        assert!(
            link.writes.stuck().waits(),
            "there is a time limit for a client that reads nothing"
        );
        let reads = async {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.expect("an end");
            assert_eq!(answer.len(), accepted);
        };
        let (end, ()) = tokio::join!(stream.shutdown(), reads);
        end.expect("shut down");
        assert_eq!(link.phase.get(), LinkPhase::Closing);
    });
}

#[test]
fn a_connection_is_not_idle_while_its_client_reads_the_last_answer() {
    const LONG: u64 = 10_000;
    run(async |_| {
        let (stream, accepted, mut client) = stuck().await;
        let link = Rc::clone(&stream.link);
        link.end_request(0);
        link.writes.stuck().end();
        assert!(!link.is_long_silent(LONG), "not even if nothing else is to be written");
        assert_eq!(link.spare_since(LONG, false), None);
        let mut answer = vec![0; accepted];
        client.read_exact(&mut answer).await.expect("the answer");
        while !link.is_long_silent(LONG) {
            yield_now().await;
        }
        assert_eq!(link.spare_since(LONG, false), Some(0));
    });
}
