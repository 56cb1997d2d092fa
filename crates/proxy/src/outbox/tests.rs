use super::*;
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::{spawn_local, yield_now};
use tokio::time::timeout;

/// A connection with as little room as the system allows, and its other end.
pub(crate) async fn pair(outbox: &Rc<Outbox>) -> (DeferredStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    set_socket_recv_buffer_size(&listener, 1).unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (stream, accepted) = tokio::join!(connecting, listener.accept());
    let stream = stream.unwrap();
    set_socket_send_buffer_size(&stream, 1).unwrap();
    (DeferredStream::new(stream, outbox), accepted.unwrap().0)
}

/// Runs `test` on a thread of the proxy, which has an outbox.
pub(crate) fn run<F: Future<Output = ()>>(test: impl FnOnce(Rc<Outbox>) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    runtime.unwrap().block_on(async {
        let outbox = Rc::<Outbox>::default();
        spawn_local(Rc::clone(&outbox).run());
        yield_now().await;
        timeout(Duration::from_mins(1), test(outbox)).await.expect("an end");
    });
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// Reads so many bytes, and no more come.
async fn received(peer: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    peer.read_exact(&mut bytes).await.unwrap();
    assert!(peer.try_read(&mut [0]).is_err(), "no more");
    bytes
}

#[test]
fn short_writes_are_sent_when_the_tasks_that_could_run_have_run() {
    run(async |outbox| {
        let ((mut one, mut one_peer), (mut two, mut two_peer)) =
            (pair(&outbox).await, pair(&outbox).await);
        one.write_all(b"a").await.unwrap();
        two.write_all(b"b").await.unwrap();
        one.write_all(b"c").await.unwrap();
        one.flush().await.unwrap();
        assert_eq!(outbox.gathered.borrow().writes.len(), 3);
        yield_now().await;
        assert!(outbox.gathered.borrow().writes.is_empty());
        assert_eq!(received(&mut one_peer, 2).await, b"ac");
        assert_eq!(received(&mut two_peer, 1).await, b"b");
    });
}

#[test]
fn no_more_is_gathered_than_the_bound() {
    run(async |outbox| {
        let (mut stream, _peer) = pair(&outbox).await;
        let mut most = 0;
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..100 {
            let _ = Pin::new(&mut stream).poll_write(&mut cx, &[0; SHORT_BYTES]);
            most = most.max(outbox.gathered.borrow().bytes.len());
        }
        assert_eq!(most, GATHERED_BYTES_MAX);
    });
}

#[test]
fn short_and_long_writes_arrive_in_order_and_before_the_end() {
    run(async |outbox| {
        let (mut stream, mut peer) = pair(&outbox).await;
        let all = content(300_000);
        let sent = all.clone();
        spawn_local(async move {
            let mut rest = &sent[..];
            for length in [1, SHORT_BYTES, SHORT_BYTES + 1, 7, 100_000, 3, 3].iter().cycle() {
                let (piece, after) = rest.split_at(rest.len().min(*length));
                stream.write_all(piece).await.unwrap();
                rest = after;
                if rest.is_empty() {
                    return stream.shutdown().await.unwrap();
                }
            }
        });
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).await.unwrap();
        assert!(bytes == all, "{} bytes", bytes.len());
    });
}

/// The writer has been told that its bytes are written, and does not care any more.
#[test]
fn what_the_system_has_no_room_for_is_sent_when_it_has() {
    run(async |outbox| {
        let (mut stream, mut peer) = pair(&outbox).await;
        let all = content(GATHERED_BYTES_MAX);
        for piece in all.chunks(SHORT_BYTES) {
            stream.write_all(piece).await.unwrap();
        }
        outbox.send();
        assert!(stream.socket.has_rest());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut stream).poll_flush(&mut cx).is_pending());
        assert!(Pin::new(&mut stream.clone()).poll_write(&mut cx, b"x").is_pending());
        assert!(received(&mut peer, all.len()).await == all);
    });
}

#[test]
fn a_writer_that_waits_for_room_is_woken() {
    run(async |outbox| {
        let (mut stream, mut peer) = pair(&outbox).await;
        let all = content(40 * SHORT_BYTES);
        let sent = all.clone();
        let same = stream.clone();
        let writing = spawn_local(async move {
            for piece in sent.chunks(SHORT_BYTES) {
                stream.write_all(piece).await.unwrap();
            }
            stream
        });
        while !same.socket.has_rest() {
            yield_now().await;
        }
        assert!(!writing.is_finished(), "there is no room for all of it");
        assert!(received(&mut peer, all.len()).await == all);
        drop(writing.await.unwrap());
    });
}

#[test]
fn a_connection_that_is_given_up_ends_although_its_peer_reads_nothing() {
    run(async |outbox| {
        let (mut stream, mut peer) = pair(&outbox).await;
        for _ in 0..GATHERED_BYTES_MAX / SHORT_BYTES {
            stream.write_all(&[0; SHORT_BYTES]).await.unwrap();
        }
        outbox.send();
        assert!(stream.socket.has_rest());
        drop(stream);
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).await.unwrap();
        assert!(bytes.len() < GATHERED_BYTES_MAX, "the rest is given up, too");
    });
}

#[test]
fn after_a_failed_send_writes_fail() {
    run(async |outbox| {
        let (mut stream, peer) = pair(&outbox).await;
        set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        // The end has arrived.
        let _ = poll_fn(|cx| stream.socket().poll_read_ready(cx)).await;
        // The first one may be accepted: the end is noticed when it is sent.
        let first = stream.write_all(b"a").await;
        yield_now().await;
        assert!(first.is_err() || stream.write_all(b"b").await.is_err());
        assert!(stream.flush().await.is_err());
        assert!(stream.write_all(&[0; 2 * SHORT_BYTES]).await.is_err());
    });
}
