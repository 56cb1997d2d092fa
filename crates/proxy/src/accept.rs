//! Accepts a listener's connections and starts a task for each.
//!
//! A connection is accepted only when there is room for it (`context/make_room.rs`). How it is
//! served: `front.rs`.

use super::context::ThreadContext;
use super::front::{self, LiveServerConfig};
use super::link::ClientLink;
use super::worker::ProxyWorker;
use evenkeel_serve::backlog;
use evenkeel_telemetry::registry::GaugeGuard;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// The number of connections accepted in a row before existing connections get a turn.
const ACCEPT_BURST: usize = 16;

impl ProxyWorker {
    /// Accepts connections until the thread drains.
    pub(super) async fn accept(
        self: Rc<ProxyWorker>,
        listener: TcpListener,
        shown: Option<LiveServerConfig>,
    ) {
        let shown = shown.as_ref();
        let thread = &self.thread;
        loop {
            for _ in 0..ACCEPT_BURST {
                let drained = thread.drained.notified();
                if thread.is_draining() {
                    return accept_waiting(&self, listener, shown);
                }
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, peer)) => {
                            thread.wait_for_room().await;
                            welcome(&self, stream, peer, shown);
                        }
                        Err(error) => accept_failed(&error).await,
                    },
                    () = drained => return accept_waiting(&self, listener, shown),
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Accepts the connections that wait in the system's queue: closing the listener would reset them.
fn accept_waiting(
    worker: &Rc<ProxyWorker>,
    listener: TcpListener,
    shown: Option<&LiveServerConfig>,
) {
    for (stream, peer) in backlog::at(listener) {
        worker.thread.room.shared.connections.fetch_add(1, Ordering::Relaxed);
        welcome(worker, stream, peer, shown);
    }
}

/// Waits before the next attempt. If the process has run out of file descriptors, for example,
/// trying again at once does not help.
async fn accept_failed(error: &std::io::Error) {
    tracing::warn!(%error, "a connection could not be accepted; trying again in 100 ms");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn welcome(
    worker: &Rc<ProxyWorker>,
    stream: TcpStream,
    peer: SocketAddr,
    shown: Option<&LiveServerConfig>,
) {
    let _ = stream.set_nodelay(true);
    let link = Rc::new(ClientLink::new(peer, shown.is_some(), worker.thread.now()));
    let seat = ConnectionGuard::take(&worker.thread, &link);
    let (worker, shown) = (Rc::clone(worker), shown.cloned());
    tokio::task::spawn_local(async move {
        front::converse(&worker, stream, link, shown).await;
        drop(seat);
    });
}

/// A connection's entry in the list of links and its room, given back when its task ends, even by a
/// panic.
struct ConnectionGuard {
    thread: Rc<ThreadContext>,
    link: Rc<ClientLink>,
    _counted: GaugeGuard,
}

impl ConnectionGuard {
    fn take(thread: &Rc<ThreadContext>, link: &Rc<ClientLink>) -> ConnectionGuard {
        thread.watch.proxy.accepted.increment(1);
        let counted = thread.watch.proxy.connections.hold();
        thread.links.add(link);
        ConnectionGuard { thread: Rc::clone(thread), link: Rc::clone(link), _counted: counted }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.thread.links.remove(&self.link);
        self.thread.room.give_back();
    }
}
