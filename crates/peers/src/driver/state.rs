//! The state for instances that join: what the buckets are short of, and the clients of the queues.
//!
//! The engines go on while buckets are read. A charge that comes during that time may be in its
//! bucket or not, so this bucket is read again. What is in a state and what is added to it:
//! `evenkeel_core::replica`.

use super::{PeerDriver, record};
use evenkeel_core::key::KeyHash;
use evenkeel_core::replica::{PeerDeficit, REPLICA_BOUNDS};
use evenkeel_core::units::{Cost, Time};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The maximum number of times that the buckets are read again that were charged. Fewer: charges
/// of busy instances are missing in the bucket of the one that joins. More: the other
/// messages wait for longer.
const STATE_READS_MAX: usize = 16;

/// A bucket: the index of its limit in the replica, and its key.
pub type BucketId = (usize, KeyHash);

impl PeerDriver {
    /// Gives a joining instance the current state, with all charges that were collected by then.
    pub(super) fn give_state(&mut self, node: u64, now: Time) {
        self.collect(now);
        let mut buckets = self.short();
        self.settle(&mut buckets, now, &mut |_, _| {});
        let mut buckets: Vec<_> =
            buckets.into_iter().map(|((limit, key), missing)| (limit, key, missing)).collect();
        buckets.sort_unstable_by_key(|(limit, key, missing)| (*limit, Reverse(*missing), *key));
        self.replica.give_state(node, buckets, now);
        self.give_clients(node, now);
    }

    /// Adds the state of a peer to the buckets here.
    pub(super) fn add_state(&mut self, state: Vec<(BucketId, PeerDeficit)>, now: Time) {
        if state.is_empty() {
            return;
        }
        let mut state: HashMap<BucketId, PeerDeficit> = state.into_iter().collect();
        let read = |id: &BucketId| Some((*id, self.missing(*id)?));
        let mut buckets = state.keys().filter_map(read).collect();
        self.settle(&mut buckets, now, &mut |id, amount| {
            if let Some(deficit) = state.get_mut(&id) {
                deficit.apart = deficit.apart.plus(amount);
            }
        });
        for (id, deficit) in state {
            let Some(place) = self.places.get(id.0) else { continue };
            let amount = buckets.get(&id).map_or(Cost::ZERO, |here| deficit.charge(*here));
            if let Some(engine) = self.engines.get(place.engine).filter(|_| amount > Cost::ZERO) {
                engine.apply_deficit(place.fingerprint, id.1, amount);
            }
        }
    }

    /// Reads those of the buckets again that have been charged since the last collection, until
    /// none has. Passes these charges to `charged`. After [`STATE_READS_MAX`] times the last ones
    /// count as read: they may be missing, but none counts twice.
    fn settle(
        &mut self,
        buckets: &mut HashMap<BucketId, Cost>,
        now: Time,
        charged: &mut dyn FnMut(BucketId, Cost),
    ) {
        for _ in 0..STATE_READS_MAX {
            let mut meanwhile = Vec::new();
            self.collect_charges(now, &mut |id, amount| meanwhile.push((id, amount)));
            if meanwhile.is_empty() {
                return;
            }
            for (id, amount) in meanwhile {
                if let Some(missing) = self.missing(id) {
                    buckets.insert(id, missing);
                    charged(id, amount);
                }
            }
        }
        self.collect(now);
    }

    /// The deficits of the buckets.
    fn short(&self) -> HashMap<BucketId, Cost> {
        let max = REPLICA_BOUNDS.state_max[usize::from(!self.transport.reliable)];
        let short = self.engines.iter().flat_map(|engine| engine.short(max));
        let placed = short
            .filter_map(|(mark, key, missing)| Some(((self.replica.place(mark)?, key), missing)));
        placed.collect()
    }

    /// The deficit of a bucket; `None` if its limit has no level.
    fn missing(&self, (limit, key): BucketId) -> Option<Cost> {
        let place = self.places.get(limit)?;
        self.engines.get(place.engine)?.missing(place.fingerprint, key)
    }

    /// Tells a joining instance of all clients that are remembered here, or of those that matter
    /// most.
    fn give_clients(&mut self, node: u64, now: Time) {
        let mut clients = Vec::new();
        let mut each = |table, key, client| clients.push((table, key, client));
        self.engines.iter().for_each(|engine| engine.clients(true, &mut each));
        let max = REPLICA_BOUNDS.clients_max[usize::from(!self.transport.reliable)];
        if clients.len() > max {
            clients.sort_unstable_by_key(|(_, _, client)| Reverse(client.rank()));
            clients.truncate(max);
        }
        let records = clients.into_iter().map(|told| record(told, now));
        self.replica.send_clients(Some(node), records, now);
    }
}
