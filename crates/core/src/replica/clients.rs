//! Records of clients that an instance has served, for the others.
//!
//! A record means the same whenever it arrives and however often, so records are neither numbered
//! nor acknowledged nor sent again. They travel in frames of state that are addressed to no
//! instance, as groups of a context of their own. An instance that knows no records passes over
//! such frames. The contents of a record: `crate::queue::SharedClient`.

use super::Replica;
use super::content::{self, StateAnswerPart};
use super::unsent::EntryPacker;
use super::update::ReplicaUpdate;
use super::wire::{ChargeEntries, PeerFrameKind, PeerFrameWriter, REPORT_BYTES};
use crate::key::KeyHash;
use crate::units::Time;
use alloc::sync::Arc;

/// The context of groups with records of clients as their amounts. Buckets have context zero.
pub const CONTEXT: u128 = 1;

impl Replica {
    /// Sends records of clients to the instance `to`, or to all. Over a group all get them. Each
    /// has the fingerprint of its table, which names what its keys are. `now`: the time that ages
    /// in the records refer to.
    pub fn send_clients(
        &mut self,
        to: Option<u64>,
        records: impl IntoIterator<Item = (u64, KeyHash, u64)>,
        now: Time,
    ) {
        let room = self.settings.frame_max.saturating_sub(REPORT_BYTES);
        let mut packer = EntryPacker::new(room);
        for (table, key, record) in records {
            if packer.group != (table, CONTEXT) {
                packer.close_group();
                packer.group = (table, CONTEXT);
            }
            packer.push(key, record);
        }
        for body in packer.done() {
            let mut writer = PeerFrameWriter::head(PeerFrameKind::State, self.sender(), now);
            let whole = StateAnswerPart::UNASKED;
            content::write_answer(&mut writer, whole);
            writer.bytes(&body.bytes);
            let frame: Arc<[u8]> = writer.done().into();
            match to {
                Some(node) => self.send_to(node, frame),
                None => self.send_all(&frame),
            }
        }
    }

    /// Whether a live instance gets what is sent to all.
    #[must_use]
    pub fn reaches_others(&self, now: Time) -> bool {
        let mut live = self.peers.values().filter(|peer| peer.is_live(self.settings.period, now));
        live.any(|peer| !self.settings.reliable || peer.ready.is_some())
    }

    /// Handles the records in a frame of state.
    pub(super) fn handle_clients(
        &mut self,
        node: u64,
        groups: ChargeEntries<'_>,
        told: &mut dyn FnMut(ReplicaUpdate<'_>),
    ) {
        let mut count = 0;
        for entry in groups.filter(|entry| entry.context == CONTEXT) {
            count += 1;
            told(ReplicaUpdate::Client {
                table: entry.limit,
                key: entry.key,
                record: entry.amount,
            });
        }
        let peer = self.peers.get_mut(&node).map(|peer| &mut peer.counts);
        for counts in peer.into_iter().chain([&mut self.totals.counts]) {
            counts.clients_in += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{ReplicaSettings, ReplicatedLimit};
    use crate::units::{Cost, Nanos};
    use alloc::vec;
    use alloc::vec::Vec;

    const START: Time = Time(1_790_000_000_000_000_000);

    fn instance(node: u64) -> Replica {
        let settings = ReplicaSettings {
            node,
            life: 1,
            name: "n".into(),
            period: Nanos::from_secs(1),
            frame_max: 300,
            reliable: true,
            cpus_milli: 1_000,
            nodes_max: 8,
        };
        let limit = ReplicatedLimit {
            fingerprint: 5,
            name: "l".into(),
            numbers: "".into(),
            unit: 1,
            per_second: Cost::ZERO,
        };
        let mut replica = Replica::new(settings, vec![limit], START);
        replica.handle_up(0, START);
        replica
    }

    /// Exchanges frames until there are none. Returns the clients that the second one learns.
    fn exchange(a: &mut Replica, b: &mut Replica) -> Vec<(u64, u64, u64)> {
        let mut told = Vec::new();
        loop {
            let frames = [a.poll_transmit(), b.poll_transmit()];
            if frames.iter().all(Option::is_none) {
                return told;
            }
            let [to_b, to_a] = frames;
            if let Some((_, frame)) = to_b {
                let mut tell = |update: ReplicaUpdate<'_>| match update {
                    ReplicaUpdate::Client { table, key, record } => {
                        told.push((table, key.bits(), record));
                    }
                    other => panic!("{other:?}"),
                };
                b.handle_frame(0, &frame, START, &mut tell).expect("a sound frame");
            }
            if let Some((_, frame)) = to_a {
                a.handle_frame(0, &frame, START, &mut |_| {}).expect("a sound frame");
            }
        }
    }

    #[test]
    fn records_arrive_whole_and_answer_no_request() {
        let (mut a, mut b) = (instance(1), instance(2));
        assert!(!a.reaches_others(START));
        assert_eq!(exchange(&mut a, &mut b), []);
        let record = |n: u64| (5 + n % 2, KeyHash::from_bits(n + 1), n << 30 | n);
        // The fingerprint of a limit is a table's name here, and charges nothing.
        for to in [None, Some(2)] {
            a.send_clients(to, (0..100).map(record), START);
            let told = exchange(&mut a, &mut b);
            let expected = (0..100).map(record).map(|(table, key, n)| (table, key.bits(), n));
            assert_eq!(told, expected.collect::<Vec<_>>());
        }
        assert_eq!((b.totals().counts.clients_in, b.totals().refused), (200, 0));
        assert!(a.reaches_others(START) && a.totals().crowded == 0);
    }
}
