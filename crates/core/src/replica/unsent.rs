//! Local charges that have not been reported yet, and their division into frames.
//!
//! The amounts of one key add up until they are reported, so a report has each key once, however
//! often it was charged. The number of keys bounds the memory; when there is no room, the caller
//! sends a report at once. The caller also decides which keys may wait for a later period.

use super::bounds::REPLICA_BOUNDS;
use super::limit::ReplicatedLimit;
use super::wire::{ENTRY_BYTES, GROUP_BYTES, PeerFrameWriter};
use crate::key::KeyHash;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// Charges that have not been reported.
#[derive(Default)]
pub struct UnsentCharges {
    groups: BTreeMap<(usize, u128), HashTable<UnsentCharge>>,
    keys: usize,
}

/// The unreported charges of one key.
#[derive(Clone, Copy)]
pub struct UnsentCharge {
    key: KeyHash,
    /// The sum of the charges in nano-units.
    pub amount: u64,
    /// The period of the first of these charges.
    pub since: u64,
}

/// The groups of one frame.
pub struct ReportBody {
    /// The groups as encoded in the frame.
    pub bytes: Vec<u8>,
    /// Number of entries in the groups.
    pub entries: u64,
}

impl UnsentCharges {
    /// Adds `amount` to a key. Returns false, and changes nothing, if there is no room.
    pub fn add(
        &mut self,
        limit: usize,
        context: u128,
        key: KeyHash,
        amount: u64,
        period: u64,
    ) -> bool {
        let groups = self.groups.len();
        if groups >= REPLICA_BOUNDS.groups_max && !self.groups.contains_key(&(limit, context)) {
            return false;
        }
        let group = self.groups.entry((limit, context)).or_default();
        if let Some(known) = group.find_mut(spread(key), |unsent| unsent.key == key) {
            known.amount = known.amount.saturating_add(amount);
            return true;
        }
        if self.keys >= REPLICA_BOUNDS.unsent_max {
            return false;
        }
        self.keys += 1;
        let unsent = UnsentCharge { key, amount, since: period };
        group.insert_unique(spread(key), unsent, |unsent| spread(unsent.key));
        true
    }

    /// Number of keys with unreported charges.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// The unreported charges of a key, in nano-units.
    pub fn unsent(&self, limit: usize, context: u128, key: KeyHash) -> u64 {
        let group = self.groups.get(&(limit, context));
        let found = group.and_then(|group| group.find(spread(key), |unsent| unsent.key == key));
        found.map_or(0, |unsent| unsent.amount)
    }

    /// Removes the charges that are `ripe`, in bodies of at most `body_max` bytes. Amounts below
    /// the unit of a limit stay. Charges of limits that no longer exist are dropped.
    pub fn cut(
        &mut self,
        limits: &[ReplicatedLimit],
        body_max: usize,
        ripe: impl Fn(usize, &UnsentCharge) -> bool,
    ) -> Vec<ReportBody> {
        let mut cutter = EntryPacker::new(body_max);
        for ((limit, context), group) in &mut self.groups {
            let Some(shared) = limits.get(*limit) else {
                group.clear();
                continue;
            };
            cutter.group = (shared.fingerprint, *context);
            group.retain(|unsent| {
                let told = unsent.amount / shared.unit;
                if told == 0 || !ripe(*limit, unsent) {
                    return true;
                }
                cutter.push(unsent.key, told);
                unsent.amount %= shared.unit;
                unsent.amount > 0
            });
            cutter.close_group();
        }
        self.groups.retain(|_, group| !group.is_empty());
        self.keys = self.groups.values().map(HashTable::len).sum();
        cutter.done()
    }

    /// Moves charges after the limits have new indexes: `place` maps an old index to the new one,
    /// if the limit still exists.
    pub fn remap_limits(&mut self, place: impl Fn(usize) -> Option<usize>) {
        let groups = core::mem::take(&mut self.groups);
        let moved = groups.into_iter();
        let moved = moved.filter_map(|((limit, of), group)| Some(((place(limit)?, of), group)));
        self.groups = moved.collect();
        self.keys = self.groups.values().map(HashTable::len).sum();
    }
}

/// Packs entries into bodies.
pub struct EntryPacker {
    bodies: Vec<ReportBody>,
    body: PeerFrameWriter,
    body_entries: u64,
    entries: PeerFrameWriter,
    count: usize,
    max: usize,
    /// Fingerprint of the limit and context of the following entries. It may change only between
    /// groups, after [`EntryPacker::close_group`].
    pub group: (u64, u128),
}

impl EntryPacker {
    /// A cutter for bodies of at most `max` bytes. A smaller `max` is raised to the size of one
    /// entry.
    pub fn new(max: usize) -> EntryPacker {
        EntryPacker {
            bodies: Vec::new(),
            body: PeerFrameWriter::part(),
            body_entries: 0,
            entries: PeerFrameWriter::part(),
            count: 0,
            max: max.max(GROUP_BYTES + ENTRY_BYTES),
            group: (0, 0),
        }
    }

    /// Adds an entry to the current group.
    pub fn push(&mut self, key: KeyHash, amount: u64) {
        let needed = self.body.len() + GROUP_BYTES + self.entries.len() + ENTRY_BYTES;
        if needed > self.max {
            self.close_group();
            self.close_body();
        }
        self.entries.entry(key, amount);
        self.count += 1;
    }

    /// Ends the current group.
    pub fn close_group(&mut self) {
        let entries = core::mem::replace(&mut self.entries, PeerFrameWriter::part()).done();
        let count = core::mem::take(&mut self.count);
        if count > 0 {
            self.body.group(self.group.0, self.group.1, count);
            self.body.bytes(&entries);
            self.body_entries += count as u64;
        }
    }

    fn close_body(&mut self) {
        let bytes = core::mem::replace(&mut self.body, PeerFrameWriter::part()).done();
        let entries = core::mem::take(&mut self.body_entries);
        if !bytes.is_empty() {
            self.bodies.push(ReportBody { bytes, entries });
        }
    }

    /// Returns all bodies; none if there was no entry.
    pub fn done(mut self) -> Vec<ReportBody> {
        self.close_group();
        self.close_body();
        self.bodies
    }
}

/// Converts a key to a table hash. The key is a hash already, but its top bit is always zero and
/// the table uses the top bits, so the halves are swapped.
fn spread(key: KeyHash) -> u64 {
    key.bits().rotate_left(32)
}
