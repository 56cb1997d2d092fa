//! The gatekeepers of a master, by address: the connected ones, and some that have disconnected.
//!
//! A gatekeeper has two connections, one for each direction, each from its own port. The address
//! joins them, so several gatekeepers on one machine appear as one. The table is bounded: the
//! master limits the connections, and only the last [`DISCONNECTED_MAX`] disconnected addresses are
//! remembered.

use crate::snapshot::zeromq::GatekeeperPeerSnapshot;
use evenkeel_core::units::Time;
use std::collections::HashMap;
use std::net::IpAddr;

/// The maximum number of disconnected addresses that are remembered.
const DISCONNECTED_MAX: usize = 64;
/// The maximum number of addresses that are shown.
const SHOWN_MAX: usize = 256;

/// The direction of one of the two connections of a gatekeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatekeeperDirection {
    /// The gatekeeper reports requests.
    Tells,
    /// The gatekeeper receives orders.
    Listens,
}

#[derive(Debug, Default)]
pub struct GatekeeperTable(HashMap<IpAddr, GatekeeperRecord>);

#[derive(Debug)]
struct GatekeeperRecord {
    /// The number of open connections, by [`GatekeeperDirection`].
    open: [usize; 2],
    messages: u64,
    heard: Option<Time>,
    /// When the last connection was opened or, if none is open, when the last one ended.
    since: Time,
}

impl GatekeeperRecord {
    fn is_gone(&self) -> bool {
        self.open == [0; 2]
    }
}

impl GatekeeperTable {
    /// Records that a connection was opened.
    pub fn came(&mut self, address: IpAddr, way: GatekeeperDirection, now: Time) {
        let unknown = || GatekeeperRecord { open: [0; 2], messages: 0, heard: None, since: now };
        let known = self.0.entry(address).or_insert_with(unknown);
        known.open[way as usize] += 1;
        known.since = now;
    }

    /// Records that a connection ended.
    pub fn went(&mut self, address: IpAddr, way: GatekeeperDirection, now: Time) {
        let Some(known) = self.0.get_mut(&address) else { return };
        let open = &mut known.open[way as usize];
        *open = open.saturating_sub(1);
        if known.is_gone() {
            known.since = now;
            self.forget();
        }
    }

    /// Forgets the address that disconnected first, if more than [`DISCONNECTED_MAX`] are
    /// disconnected.
    fn forget(&mut self) {
        let gone = self.0.iter().filter(|(_, known)| known.is_gone());
        let longest = gone.clone().min_by_key(|(_, known)| known.since);
        if let Some((address, _)) = longest.filter(|_| gone.clone().count() > DISCONNECTED_MAX) {
            let address = *address;
            self.0.remove(&address);
        }
    }

    /// Records `messages` messages from `address`.
    pub fn heard(&mut self, address: IpAddr, messages: u64, now: Time) {
        if let Some(known) = self.0.get_mut(&address) {
            known.messages += messages;
            known.heard = Some(now);
        }
    }

    /// The connected gatekeepers, then the disconnected ones, latest first; `SHOWN_MAX` at most.
    pub fn seen(&self, now: Time) -> Vec<GatekeeperPeerSnapshot> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(address, known)| {
            let gone = known.is_gone();
            (gone, gone.then(|| now.since(known.since)), **address)
        });
        all.truncate(SHOWN_MAX);
        let gate = |(address, known): (&IpAddr, &GatekeeperRecord)| GatekeeperPeerSnapshot {
            address: address.to_string(),
            telling: known.open[GatekeeperDirection::Tells as usize],
            listening: known.open[GatekeeperDirection::Listens as usize],
            messages: known.messages,
            heard: known.heard.map(|heard| now.since(heard).as_secs_f64()),
            seconds: now.since(known.since).as_secs_f64(),
        };
        all.into_iter().map(gate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::SECOND;

    fn address(n: usize) -> IpAddr {
        IpAddr::from([10, 0, (n >> 8) as u8, n as u8])
    }

    fn at(seconds: u64) -> Time {
        Time((1_000 + seconds) * SECOND)
    }

    #[test]
    fn who_is_there_comes_first_and_who_is_gone_is_remembered_for_a_while() {
        let mut gates = GatekeeperTable::default();
        gates.came(address(2), GatekeeperDirection::Tells, at(0));
        gates.came(address(2), GatekeeperDirection::Listens, at(1));
        gates.came(address(1), GatekeeperDirection::Listens, at(2));
        gates.heard(address(2), 3, at(3));
        gates.went(address(2), GatekeeperDirection::Listens, at(4));
        let seen = gates.seen(at(5));
        let of = |n: usize| (seen[n].address.as_str(), seen[n].telling, seen[n].listening);
        assert_eq!((of(0), of(1)), (("10.0.0.1", 0, 1), ("10.0.0.2", 1, 0)));
        assert_eq!((seen[1].messages, seen[1].heard, seen[1].seconds), (3, Some(2.0), 4.0));
        gates.went(address(2), GatekeeperDirection::Tells, at(6));
        // A connection that was never recorded as open removes no connection of another gatekeeper.
        gates.went(address(2), GatekeeperDirection::Tells, at(6));
        gates.went(address(9), GatekeeperDirection::Tells, at(6));
        let seen = gates.seen(at(9));
        assert_eq!((seen.len(), seen[1].telling, seen[1].seconds), (2, 0, 3.0));
        gates.came(address(2), GatekeeperDirection::Tells, at(10));
        assert_eq!(gates.seen(at(10))[1].messages, 3, "who comes back is the same");
    }

    #[test]
    fn they_are_bounded_and_nobody_is_forgotten_who_is_there() {
        let mut gates = GatekeeperTable::default();
        gates.came(address(1_000), GatekeeperDirection::Tells, at(0));
        for n in 0..500 {
            gates.came(address(n), GatekeeperDirection::Tells, at(1));
            gates.went(address(n), GatekeeperDirection::Tells, at(2 + n as u64));
        }
        let seen = gates.seen(at(600));
        assert_eq!(gates.0.len(), DISCONNECTED_MAX + 1);
        assert_eq!((seen[0].address.as_str(), seen[0].telling), ("10.0.3.232", 1));
        assert_eq!(seen[1].address, "10.0.1.243", "the last to go");
        for n in 0..500 {
            gates.came(address(n), GatekeeperDirection::Listens, at(700));
        }
        assert_eq!((gates.0.len(), gates.seen(at(700)).len()), (501, SHOWN_MAX));
    }
}
