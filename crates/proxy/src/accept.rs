//! Accepts a listener's connections and starts a task for each.
//!
//! A connection is accepted only when there is room for it (`context/make_room.rs`). How it is
//! served: `front.rs`.

use super::context::ThreadContext;
use super::front::{self, LiveServerConfig};
use super::link::ClientLink;
use super::worker::ProxyWorker;
use evenkeel_serve::accept;
use evenkeel_serve::handover::HandoverSignal;
use evenkeel_serve::threads::ServerOrders;
use evenkeel_telemetry::registry::GaugeGuard;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::{TcpListener, TcpStream};

impl ProxyWorker {
    /// Accepts connections until the thread drains.
    pub(super) async fn accept(
        self: Rc<ProxyWorker>,
        listener: TcpListener,
        shown: Option<LiveServerConfig>,
        orders: ServerOrders,
    ) {
        let log = |error: &std::io::Error| {
            tracing::warn!(%error, "a connection could not be accepted; trying again in 100 ms");
        };
        let welcome = async |(stream, peer)| {
            self.thread.wait_for_room().await;
            welcome(&self, stream, peer, shown.as_ref());
        };
        // The proxy accepts beside its successor until it drains.
        accept::accept(listener, (orders, HandoverSignal::default()), log, welcome).await;
    }
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
        let counted = thread.watch.proxy.connections.accept();
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
