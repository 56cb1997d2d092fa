//! Accepts a listener's connections and starts a task for each.
//!
//! A connection is accepted only when there is room for it (`context/make_room.rs`). How it is
//! served: `front.rs`.

use super::front::{self, LiveServerConfig};
use super::link::ClientLink;
use super::outbox::DeferredStream;
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
    let stream = DeferredStream::new(stream, &worker.thread.outbox);
    let secure = shown.is_some();
    let link = Rc::new(ClientLink::new(peer, secure, stream.unsent(), worker.thread.now()));
    let (seat, shown) = (ConnectionGuard::take(worker, link), shown.cloned());
    tokio::task::spawn_local(async move {
        front::converse(&seat.worker, stream, &seat.link, shown).await;
    });
}

/// A connection's entry in the list of links and its room, given back when its task ends, even by a
/// panic.
struct ConnectionGuard {
    worker: Rc<ProxyWorker>,
    link: Rc<ClientLink>,
    _counted: GaugeGuard,
}

impl ConnectionGuard {
    fn take(worker: &Rc<ProxyWorker>, link: Rc<ClientLink>) -> ConnectionGuard {
        let counted = worker.thread.watch.proxy.connections.accept();
        worker.thread.links.add(&link);
        ConnectionGuard { worker: Rc::clone(worker), link, _counted: counted }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.worker.thread.links.remove(&self.link);
        self.worker.thread.room.give_back();
    }
}
