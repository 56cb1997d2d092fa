//! Takes the room for a connection, and closes another one if there is none.
//!
//! A connection is closed for it only if that harms no honest client: it is idle, or late with a
//! head, or with a body that no backend waits for. If this thread has none of that kind, all
//! threads are asked for one. What is given back, and when: `room.rs`.

use super::ThreadContext;
use super::settings::ThreadSettings;
use crate::link::ClientLink;
use crate::room::{AddressShare, TunnelRoom};
use evenkeel_telemetry::counts::ConnectionRefusal;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::atomic::Ordering;

impl ThreadContext {
    /// Takes the room for one more connection, waiting until there is some. A connection over the
    /// bound waits in the system's queue and costs nothing; an idle or late connection is closed to
    /// make room. (Accepting and closing would cost more and give the client less information.)
    pub(crate) async fn wait_for_room(&self) {
        loop {
            if self.one_more(self.draining.get()) {
                return;
            }
            if !self.shed() {
                self.room.want();
            }
            let tick = self.settings().tick();
            let _ = tokio::time::timeout(tick, self.room.freed.notified()).await;
        }
    }

    /// Takes the room for a connection if there is some, or in any case if `free`.
    pub(super) fn one_more(&self, free: bool) -> bool {
        let bound = self.settings().bounds.connections;
        let taken = self.room.take(bound, free);
        if !taken {
            self.watch.warn_connections_full(bound, self.time());
        }
        taken
    }

    /// Takes the room for a connection, in place of another one if there is none. That one gives
    /// its own room back when it ends.
    pub(super) fn one_more_or_shed(&self) -> bool {
        self.one_more(false) || (self.shed() && self.one_more(true))
    }

    /// Closes a connection if another thread has asked for room. If none can be spared, the request
    /// remains for the next thread.
    pub(crate) fn shed_if_wanted(&self) {
        if self.room.shared.room_wanted.swap(false, Ordering::Relaxed) && !self.shed() {
            self.room.want();
        }
    }

    /// Closes the connection that could be spared for the longest time: idle, or late with a head
    /// or with a body that no backend waits for. Returns whether there was one.
    fn shed(&self) -> bool {
        let links = self.links.all();
        let now = self.now();
        let trickling = self.trickling(now);
        let spare = links.iter().filter_map(|link| {
            let since = link.spare_since(now, trickling.contains(&Rc::as_ptr(link)));
            Some((since?, link))
        });
        let longest = spare.min_by_key(|(since, _)| *since);
        if let Some((_, link)) = longest {
            self.watch.proxy.connections.shed.increment(1);
            link.close();
        }
        longest.is_some()
    }

    /// Returns the connections on which every stream has a body that trickles in and no backend
    /// yet.
    fn trickling(&self, now: u64) -> HashSet<*const ClientLink> {
        let (mut spare, mut lively) = (HashSet::new(), HashSet::new());
        for link in &*self.streams.all() {
            let Some(over) = link.over.as_ref().map(Rc::as_ptr) else { continue };
            let of = if link.upload.is_spare(now) { &mut spare } else { &mut lively };
            of.insert(over);
        }
        spare.retain(|over| !lively.contains(over));
        spare
    }

    /// Takes the room for a tunnel on a stream. Returns `None` if there is none, or the peer of
    /// `link` has its maximum number of connections.
    pub(crate) fn take_tunnel_room(&self, link: &ClientLink) -> Option<TunnelRoom> {
        let share = self.take_address_share(link)?;
        let counted = self.watch.proxy.connections.open.hold();
        let taken = self.one_more_or_shed();
        if !taken {
            self.room.want();
        }
        taken.then(|| TunnelRoom::of(&self.room, share, counted))
    }

    /// Counts a connection for its peer's address. Returns `None`, and counts the refusal, if the
    /// peer has its maximum number of connections.
    pub(crate) fn take_address_share(&self, link: &ClientLink) -> Option<AddressShare> {
        let settings = self.settings();
        let Some(peer) = counted_address(&settings, link.peer.address()) else {
            return Some(AddressShare::default());
        };
        let bound = settings.bounds.connections_per_address;
        let share = AddressShare::take(&self.room, peer, bound);
        if share.is_none() {
            self.watch.proxy.refused_connections(ConnectionRefusal::Address).increment(1);
        }
        share
    }
}

/// Returns the address to count a connection from `peer` for, if it is counted.
fn counted_address(settings: &ThreadSettings, peer: IpAddr) -> Option<IpAddr> {
    let bound = settings.bounds.connections_per_address;
    (bound > 0 && !settings.trust.trusts(peer)).then(|| one_client(peer))
}

/// Returns the address that stands for a client: an IPv6 client has all addresses of its network of
/// 64 bits.
fn one_client(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}
