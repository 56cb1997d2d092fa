//! What was charged here and has not been told yet, and how it is cut into frames.
//!
//! Amounts of one key add up until they are told, so a report has each key once however often it
//! was charged. Memory is bounded by the number of keys; who is told that there is no more room
//! tells the peers at once. Which keys may wait for a later period is the caller's to say.

use super::wire::{ENTRY_BYTES, GROUP_BYTES, Writer};
use super::{BOUNDS, Shared};
use crate::key::KeyHash;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// What has not been told.
#[derive(Default)]
pub struct Tally {
    groups: BTreeMap<(usize, u128), HashTable<Unsent>>,
    keys: usize,
}

/// What one key was charged.
#[derive(Clone, Copy)]
pub struct Unsent {
    key: KeyHash,
    /// In nano-units.
    pub amount: u64,
    /// The period in which it began.
    pub since: u64,
}

/// The groups of one frame.
pub struct Body {
    /// As they are sent.
    pub bytes: Vec<u8>,
    /// How many entries they have.
    pub entries: u64,
}

impl Tally {
    /// Adds `amount` under a key. False if there was no room, and nothing was noted.
    pub fn add(
        &mut self,
        limit: usize,
        context: u128,
        key: KeyHash,
        amount: u64,
        period: u64,
    ) -> bool {
        let groups = self.groups.len();
        if groups >= BOUNDS.groups_max && !self.groups.contains_key(&(limit, context)) {
            return false;
        }
        let group = self.groups.entry((limit, context)).or_default();
        if let Some(known) = group.find_mut(spread(key), |unsent| unsent.key == key) {
            known.amount = known.amount.saturating_add(amount);
            return true;
        }
        if self.keys >= BOUNDS.unsent_max {
            return false;
        }
        self.keys += 1;
        let unsent = Unsent { key, amount, since: period };
        group.insert_unique(spread(key), unsent, |unsent| spread(unsent.key));
        true
    }

    /// How many keys wait.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// What has not been told under a key, in nano-units.
    pub fn unsent(&self, limit: usize, context: u128, key: KeyHash) -> u64 {
        let group = self.groups.get(&(limit, context));
        let found = group.and_then(|group| group.find(spread(key), |unsent| unsent.key == key));
        found.map_or(0, |unsent| unsent.amount)
    }

    /// Takes out what is `ripe`, in bodies of at most `body_max` bytes. What is less than a
    /// limit's unit stays.
    pub fn cut(
        &mut self,
        limits: &[Shared],
        body_max: usize,
        ripe: impl Fn(usize, &Unsent) -> bool,
    ) -> Vec<Body> {
        let mut cutter = Cutter::new(body_max);
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

    /// Limits have other places now: `place` says which, if any.
    pub fn moved(&mut self, place: impl Fn(usize) -> Option<usize>) {
        let groups = core::mem::take(&mut self.groups);
        let moved = groups.into_iter();
        let moved = moved.filter_map(|((limit, of), group)| Some(((place(limit)?, of), group)));
        self.groups = moved.collect();
        self.keys = self.groups.values().map(HashTable::len).sum();
    }
}

/// Fills bodies with entries.
pub struct Cutter {
    bodies: Vec<Body>,
    body: Writer,
    body_entries: u64,
    entries: Writer,
    count: usize,
    max: usize,
    /// The limit's fingerprint and context that entries are of; changed between groups only.
    pub group: (u64, u128),
}

impl Cutter {
    /// For bodies of at most `max` bytes, which is room for one entry at least.
    pub fn new(max: usize) -> Cutter {
        Cutter {
            bodies: Vec::new(),
            body: Writer::part(),
            body_entries: 0,
            entries: Writer::part(),
            count: 0,
            max: max.max(GROUP_BYTES + ENTRY_BYTES),
            group: (0, 0),
        }
    }

    /// Adds an entry of the present group.
    pub fn push(&mut self, key: KeyHash, amount: u64) {
        let needed = self.body.len() + GROUP_BYTES + self.entries.len() + ENTRY_BYTES;
        if needed > self.max {
            self.close_group();
            self.close_body();
        }
        self.entries.entry(key, amount);
        self.count += 1;
    }

    /// Ends a group.
    pub fn close_group(&mut self) {
        let entries = core::mem::replace(&mut self.entries, Writer::part()).done();
        let count = core::mem::take(&mut self.count);
        if count > 0 {
            self.body.group(self.group.0, self.group.1, count);
            self.body.bytes(&entries);
            self.body_entries += count as u64;
        }
    }

    fn close_body(&mut self) {
        let bytes = core::mem::replace(&mut self.body, Writer::part()).done();
        let entries = core::mem::take(&mut self.body_entries);
        if !bytes.is_empty() {
            self.bodies.push(Body { bytes, entries });
        }
    }

    /// All bodies; none if there was no entry.
    pub fn done(mut self) -> Vec<Body> {
        self.close_group();
        self.close_body();
        self.bodies
    }
}

/// A key's hash is one already; its top bit is always zero, and the table looks at the top bits.
fn spread(key: KeyHash) -> u64 {
    key.bits().rotate_left(32)
}
