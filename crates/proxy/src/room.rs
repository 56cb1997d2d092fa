//! The state that all threads share: the room for connections (how many are open, and how many each
//! address has), and which backends have which prompts in their caches
//! (`evenkeel_models::affinity`).
//!
//! The guards here only give back what was taken. Taking room, and closing a connection to make
//! some: `context/make_room.rs`.

use evenkeel_models::affinity::PrefixAffinity;
use evenkeel_telemetry::registry::GaugeGuard;
use evenkeel_tls::challenges::OpenChallenges;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct ProxyShared {
    pub(super) threads: usize,
    /// The number of open client connections, with tunnels on streams and streams set aside.
    pub(super) connections: AtomicUsize,
    /// The number of connections per address, if there is a bound. It has no more entries than
    /// there are connections.
    addresses: Mutex<HashMap<IpAddr, usize>>,
    /// A thread has no room, and no idle connection of its own to close: another thread is to close
    /// one.
    pub(super) room_wanted: AtomicBool,
    pub(super) affinity: PrefixAffinity,
    /// The challenges that an authority may ask for before it issues a certificate.
    pub(super) challenges: Arc<OpenChallenges>,
}

impl ProxyShared {
    pub(super) fn of(threads: usize, challenges: Arc<OpenChallenges>) -> ProxyShared {
        ProxyShared { threads, challenges, ..ProxyShared::default() }
    }

    /// Counts one more connection of `peer`, unless it has `bound` of them. Returns whether it is
    /// counted.
    fn add_address(&self, peer: IpAddr, bound: usize) -> bool {
        let mut addresses = self.addresses.lock();
        let count = addresses.entry(peer).or_default();
        let fits = *count < bound;
        *count += usize::from(fits);
        fits
    }

    fn remove_address(&self, peer: IpAddr) {
        let mut addresses = self.addresses.lock();
        if let Some(count) = addresses.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&peer);
            }
        }
    }
}

/// The room as one thread sees it.
pub(super) struct ThreadRoom {
    pub(super) shared: Arc<ProxyShared>,
    /// Notified when a connection, or an exchange without a client, of this thread has ended.
    pub(super) freed: Notify,
}

impl ThreadRoom {
    pub(super) fn new(shared: Arc<ProxyShared>) -> Rc<ThreadRoom> {
        Rc::new(ThreadRoom { shared, freed: Notify::new() })
    }

    /// Takes the room for one connection if there is some, or in any case if `free`. `bound`: the
    /// maximum number of connections; zero is no bound. Returns whether it is taken.
    pub(super) fn take(&self, bound: usize, free: bool) -> bool {
        let one_more = |open| (free || bound == 0 || open < bound).then_some(open + 1);
        let open = &self.shared.connections;
        open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    pub(super) fn give_back(&self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    /// Asks all threads to close a connection that can be spared.
    pub(super) fn want(&self) {
        self.shared.room_wanted.store(true, Ordering::Relaxed);
    }
}

/// One of the connections that an address may have, given back when it ends. Empty if the address
/// has no bound.
#[derive(Default)]
pub(super) struct AddressShare(Option<(Rc<ThreadRoom>, IpAddr)>);

impl AddressShare {
    /// Counts a connection of `peer`. Returns `None` if it has `bound` of them.
    pub(super) fn take(room: &Rc<ThreadRoom>, peer: IpAddr, bound: usize) -> Option<AddressShare> {
        let counted = room.shared.add_address(peer, bound);
        counted.then(|| AddressShare(Some((Rc::clone(room), peer))))
    }
}

impl Drop for AddressShare {
    fn drop(&mut self) {
        if let Some((room, peer)) = &self.0 {
            room.shared.remove_address(*peer);
        }
    }
}

/// The room that a tunnel on a stream takes, like the connection of its own that it would be in
/// HTTP/1.1. Given back when the tunnel ends.
pub(super) struct TunnelRoom {
    room: Rc<ThreadRoom>,
    _share: AddressShare,
    _counted: GaugeGuard,
}

impl TunnelRoom {
    /// Keeps room that has been taken. `counted` counts the tunnel in the metrics.
    pub(super) fn of(
        room: &Rc<ThreadRoom>,
        share: AddressShare,
        counted: GaugeGuard,
    ) -> TunnelRoom {
        TunnelRoom { room: Rc::clone(room), _share: share, _counted: counted }
    }
}

impl Drop for TunnelRoom {
    fn drop(&mut self) {
        self.room.give_back();
    }
}
