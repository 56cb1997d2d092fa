//! The heaviest clients of one limit, by name, in bounded memory.
//!
//! This is the space-saving algorithm (Metwally, Agrawal, El Abbadi, 2005) with `capacity`
//! counters. A client that is not tracked takes over the smallest counter with its value. So a
//! client with more than 1/`capacity` of all cost is always listed, and a flood of unique keys
//! competes for one counter, the smallest. The value taken over is the error: the true rate lies
//! between `cost_per_second` and `cost_per_second + error_per_second`.
//!
//! Rates decay over [`DECAY_TIME`], also while a client is idle. Instead of decaying old cost,
//! later cost gets a larger weight. So the order of the counters does not change over time, and a
//! heap maintains it. The list is for display only; no decision depends on it.

mod recent;

use crate::key::{KeyHash, NAME_BYTES_MAX};
use crate::units::{Cost, Nanos, SECOND, Time};
use alloc::string::String;
use alloc::vec::Vec;
use hashbrown::HashTable;
use recent::{AnswerTimes, MajorityKey};

/// Time constant of the decay: a cost this long ago weighs 1/e of a cost now. Shorter: the rates
/// fluctuate. Longer: a client that has stopped is listed for longer.
pub const DECAY_TIME: Nanos = Nanos::from_secs(10);
/// The maximum number of clients that one list can track.
pub const CAPACITY_MAX: usize = 1 << 20;
/// Time for which a calculated weight is reused; the error is at most a ten-thousandth.
const WEIGHT_REUSE_TIME: Nanos = Nanos::from_millis(1);
/// Weights are rebased when they have grown by e to this power.
const GROWTH_MAX: f64 = 300.0;

/// One client with its current rates.
#[derive(Clone, Debug, PartialEq)]
pub struct TopClient {
    /// The client's key.
    pub hash: KeyHash,
    /// Readable name, at most [`NAME_BYTES_MAX`] bytes; empty until `touch`, `count` or `set_name`
    /// sets it.
    pub name: String,
    /// Lower bound of CPU-seconds (or hits) per second, decayed over [`DECAY_TIME`].
    pub cost_per_second: f64,
    /// Maximum amount by which `cost_per_second` may be too low: the cost before the client was
    /// tracked.
    pub error_per_second: f64,
    /// Requests per second, decayed over [`DECAY_TIME`].
    pub requests_per_second: f64,
    /// Mean waiting time, as an exponential average: the last request weighs a tenth, the one
    /// before it 0.09, and so on.
    pub wait: Nanos,
    /// Since when the client is tracked.
    pub first_seen: Time,
    /// Time of its last activity.
    pub last_seen: Time,
    /// Total cost since the client is tracked.
    pub total: Cost,
    /// How long its requests took: the median of the last five. `None` if none has ended.
    pub answered: Option<Nanos>,
    /// The route and the user agent of most of its requests, as passed to `add_answered`.
    pub usual: [Option<KeyHash>; 2],
}

/// What is known of a request that has ended, beside its cost.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest {
    /// The time from its arrival to the end of its answer; `None` if it is not known.
    pub took: Option<Nanos>,
    /// Whether its client was in debt.
    pub in_debt: bool,
    /// The keys of its route and its user agent.
    pub usual: [KeyHash; 2],
}

/// How long the recent requests of one client took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientAnswer {
    /// The client's key.
    pub hash: KeyHash,
    /// The median of its last five requests.
    pub took: Nanos,
    /// Whether it was in debt at its last one.
    pub in_debt: bool,
    /// Its requests, each weighed by its age; only for comparison with those in other lists at the
    /// same time.
    pub requests: f64,
}

/// A bounded list of the clients with the highest cost.
#[derive(Debug)]
pub struct TopClients {
    capacity: usize,
    /// Origin of the weights: cost at `t` weighs e to the (t - since) / MEMORY.
    since: Time,
    /// The time of the last weight calculation, and its result.
    weighed: (Time, f64),
    entries: Vec<TopEntry>,
    /// Indexes into `entries` as a binary heap, the lightest first.
    heap: Vec<u32>,
    /// Maps the hash of a key to its index in `entries`.
    index: HashTable<u32>,
}

#[derive(Debug)]
struct TopEntry {
    hash: KeyHash,
    name: String,
    /// Position of this entry in the heap.
    place: usize,
    /// The counter in nano-units, relative to `since`; the part `error` of it was taken over.
    weight: f64,
    error: f64,
    requests: f64,
    wait: f64,
    first_seen: Time,
    last_seen: Time,
    total: Cost,
    times: AnswerTimes,
    in_debt: bool,
    usual: [MajorityKey; 2],
}

impl TopClients {
    /// A list for at most `capacity` clients, clamped to the range from 1 to [`CAPACITY_MAX`].
    #[must_use]
    pub fn new(capacity: usize) -> TopClients {
        TopClients {
            capacity: capacity.clamp(1, CAPACITY_MAX),
            since: Time::ZERO,
            weighed: (Time::ZERO, 1.0),
            entries: Vec::new(),
            heap: Vec::new(),
            index: HashTable::new(),
        }
    }

    /// Records the arrival of a request. `name` is called if the client has no name here yet.
    pub fn touch(&mut self, hash: KeyHash, now: Time, name: impl FnOnce() -> String) {
        let weight = self.weight_at(now);
        let entry = self.entry(hash, now);
        entry.requests += weight;
        if entry.name.is_empty() {
            entry.name = bounded(name());
        }
    }

    /// Records `requests` requests with a total of `cost`, none of which waited: `touch` and `add`
    /// in one call.
    pub fn count(
        &mut self,
        hash: KeyHash,
        requests: u64,
        cost: Cost,
        now: Time,
        name: impl FnOnce() -> String,
    ) {
        let weight = self.weight_at(now);
        let entry = self.entry(hash, now);
        entry.requests += weight * requests as f64;
        entry.weight += weight * cost.0 as f64;
        entry.total = entry.total.plus(cost);
        if entry.name.is_empty() {
            entry.name = bounded(name());
        }
        let place = entry.place;
        self.sift_down(place);
    }

    /// Records that a request cost `cost` and waited for `wait`. A client that is not tracked (any
    /// longer) is added without a name; otherwise a flood between the start and the end of a
    /// request would hide its cost. Returns whether the client has no name, so that a caller that
    /// knows the name can set it with [`TopClients::set_name`].
    pub fn add(&mut self, hash: KeyHash, cost: Cost, wait: Nanos, now: Time) -> bool {
        self.add_answered(hash, cost, wait, now, None)
    }

    /// As [`TopClients::add`], with what is known of the answer.
    pub fn add_answered(
        &mut self,
        hash: KeyHash,
        cost: Cost,
        wait: Nanos,
        now: Time,
        answer: Option<AnsweredRequest>,
    ) -> bool {
        let weight = self.weight_at(now) * cost.0 as f64;
        let entry = self.entry(hash, now);
        entry.weight += weight;
        entry.total = entry.total.plus(cost);
        entry.wait += (wait.0 as f64 - entry.wait) / 10.0;
        if let Some(AnsweredRequest { took, in_debt, usual }) = answer {
            took.into_iter().for_each(|took| entry.times.note(took));
            entry.in_debt = in_debt;
            entry.usual.iter_mut().zip(usual).for_each(|(most, key)| most.note(key));
        }
        let (place, is_nameless) = (entry.place, entry.name.is_empty());
        self.sift_down(place);
        is_nameless
    }

    /// Sets the name of `hash`, if it is tracked.
    pub fn set_name(&mut self, hash: KeyHash, name: String) {
        let found = self.index.find(spread(hash), |i| self.entries[*i as usize].hash == hash);
        if let Some(i) = found.copied() {
            self.entries[i as usize].name = bounded(name);
        }
    }

    /// How long the requests took of each tracked client that was seen at `since` or later.
    pub fn answers(&self, since: Time, now: Time) -> impl Iterator<Item = ClientAnswer> {
        let faded = exp(-self.age(now));
        let seen = self.entries.iter().filter(move |entry| entry.last_seen >= since);
        seen.filter_map(move |entry| {
            let took = entry.times.median()?;
            let requests = entry.requests * faded;
            Some(ClientAnswer { hash: entry.hash, took, in_debt: entry.in_debt, requests })
        })
    }

    /// All tracked clients, the heaviest first.
    #[must_use]
    pub fn rows(&self, now: Time) -> Vec<TopClient> {
        self.shown(self.entries.iter(), now)
    }

    fn shown<'a>(&self, entries: impl Iterator<Item = &'a TopEntry>, now: Time) -> Vec<TopClient> {
        let faded = exp(-self.age(now)) / DECAY_TIME.as_secs_f64();
        let row = |entry: &TopEntry| TopClient {
            hash: entry.hash,
            name: entry.name.clone(),
            cost_per_second: (entry.weight - entry.error) * faded / SECOND as f64,
            error_per_second: entry.error * faded / SECOND as f64,
            requests_per_second: entry.requests * faded,
            wait: Nanos(entry.wait as u64),
            first_seen: entry.first_seen,
            last_seen: entry.last_seen,
            total: entry.total,
            answered: entry.times.median(),
            usual: entry.usual.map(|key| key.get()),
        };
        sorted(entries.map(row).collect())
    }

    /// The `max` heaviest clients: the first elements of `rows`, without the work for the others.
    #[must_use]
    pub fn heaviest(&self, max: usize, now: Time) -> Vec<TopClient> {
        let known = |entry: &TopEntry| entry.weight - entry.error;
        let mut entries: Vec<&TopEntry> = self.entries.iter().collect();
        if max == 0 {
            return Vec::new();
        }
        if entries.len() > max {
            let heavier = |a: &&TopEntry, b: &&TopEntry| known(b).total_cmp(&known(a));
            entries.select_nth_unstable_by(max - 1, heavier);
            entries.truncate(max);
        }
        self.shown(entries.into_iter(), now)
    }

    /// Merges several lists, such as one for each thread. Rates of the same client add up, and its
    /// mean waits are averaged by requests.
    #[must_use]
    pub fn merge(lists: Vec<Vec<TopClient>>) -> Vec<TopClient> {
        let mut merged: Vec<TopClient> = Vec::new();
        let mut index: HashTable<usize> = HashTable::new();
        for row in lists.into_iter().flatten() {
            let found = index.find(spread(row.hash), |i| merged[*i].hash == row.hash).copied();
            match found {
                Some(i) => merged[i].join(row),
                None => {
                    let hash = spread(row.hash);
                    index.insert_unique(hash, merged.len(), |i| spread(merged[*i].hash));
                    merged.push(row);
                }
            }
        }
        sorted(merged)
    }

    /// The name of `hash`, if it is tracked and has a name.
    #[must_use]
    pub fn name(&self, hash: KeyHash) -> Option<String> {
        let i = self.index.find(spread(hash), |i| self.entries[*i as usize].hash == hash)?;
        let name = &self.entries[*i as usize].name;
        (!name.is_empty()).then(|| name.clone())
    }

    /// Number of tracked clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no client is tracked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The weight of one nano-unit of cost at `now`.
    fn weight_at(&mut self, now: Time) -> f64 {
        let (at, weight) = self.weighed;
        if at <= now && now.since(at) < WEIGHT_REUSE_TIME {
            return weight;
        }
        if self.age(now) > GROWTH_MAX {
            self.rebase(now);
        }
        self.weighed = (now, exp(self.age(now)));
        self.weighed.1
    }

    /// Time from `since` to `now` in units of [`DECAY_TIME`]; zero for a `now` before `since`.
    fn age(&self, now: Time) -> f64 {
        now.since(self.since).as_secs_f64() / DECAY_TIME.as_secs_f64()
    }

    /// Makes `now` the origin of the weights. All weights shrink by the same factor, so the order
    /// stays.
    fn rebase(&mut self, now: Time) {
        let faded = exp(-self.age(now));
        for entry in &mut self.entries {
            entry.weight *= faded;
            entry.error *= faded;
            entry.requests *= faded;
        }
        self.since = now;
    }

    /// The entry of `hash`. If the list is full, it replaces the lightest entry.
    fn entry(&mut self, hash: KeyHash, now: Time) -> &mut TopEntry {
        let found = self.index.find(spread(hash), |i| self.entries[*i as usize].hash == hash);
        let i = match found {
            Some(i) => *i as usize,
            None if self.entries.len() < self.capacity => self.insert(hash),
            None => self.replace(hash),
        };
        let entry = &mut self.entries[i];
        if entry.first_seen == Time::ZERO {
            entry.first_seen = now;
        }
        entry.last_seen = entry.last_seen.max(now);
        entry
    }

    fn insert(&mut self, hash: KeyHash) -> usize {
        let i = self.entries.len();
        self.entries.push(TopEntry::new(hash, i, 0.0));
        self.heap.push(i as u32);
        self.remember(hash, i);
        self.sift_up(i);
        i
    }

    fn replace(&mut self, hash: KeyHash) -> usize {
        let i = self.heap[0] as usize;
        let gone = self.entries[i].hash;
        let old = self.index.find_entry(spread(gone), |j| self.entries[*j as usize].hash == gone);
        if let Ok(old) = old {
            old.remove();
        }
        self.entries[i] = TopEntry::new(hash, 0, self.entries[i].weight);
        self.remember(hash, i);
        i
    }

    fn remember(&mut self, hash: KeyHash, i: usize) {
        let entries = &self.entries;
        self.index.insert_unique(spread(hash), i as u32, |j| spread(entries[*j as usize].hash));
    }

    fn lighter(&self, a: usize, b: usize) -> bool {
        let weight = |place: usize| self.entries[self.heap[place] as usize].weight;
        weight(a) < weight(b)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.entries[self.heap[a] as usize].place = a;
        self.entries[self.heap[b] as usize].place = b;
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 && self.lighter(place, (place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            if left >= self.heap.len() {
                return;
            }
            let child =
                if right < self.heap.len() && self.lighter(right, left) { right } else { left };
            if !self.lighter(child, place) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }
}

impl TopEntry {
    /// A client that takes over a counter with the value `weight`.
    fn new(hash: KeyHash, place: usize, weight: f64) -> TopEntry {
        TopEntry {
            hash,
            name: String::new(),
            place,
            weight,
            error: weight,
            requests: 0.0,
            wait: 0.0,
            first_seen: Time::ZERO,
            last_seen: Time::ZERO,
            total: Cost::ZERO,
            times: AnswerTimes::default(),
            in_debt: false,
            usual: Default::default(),
        }
    }
}

impl TopClient {
    fn join(&mut self, other: TopClient) {
        let requests = self.requests_per_second + other.requests_per_second;
        let part = if requests > 0.0 { other.requests_per_second / requests } else { 0.5 };
        let wait = self.wait.0 as f64 * (1.0 - part) + other.wait.0 as f64 * part;
        self.wait = Nanos(wait as u64);
        self.answered = match (self.answered, other.answered) {
            (Some(own), Some(theirs)) => {
                Some(Nanos((own.0 as f64 * (1.0 - part) + theirs.0 as f64 * part) as u64))
            }
            (own, theirs) => own.or(theirs),
        };
        for (own, theirs) in self.usual.iter_mut().zip(other.usual) {
            *own = if part > 0.5 { theirs.or(*own) } else { own.or(theirs) };
        }
        self.first_seen = self.first_seen.min(other.first_seen);
        self.requests_per_second = requests;
        self.cost_per_second += other.cost_per_second;
        self.error_per_second += other.error_per_second;
        self.last_seen = self.last_seen.max(other.last_seen);
        self.total = self.total.plus(other.total);
        if self.name.is_empty() {
            self.name = other.name;
        }
    }
}

/// Sorts the heaviest first; among equals, the one seen last.
fn sorted(mut rows: Vec<TopClient>) -> Vec<TopClient> {
    rows.sort_unstable_by(|a, b| {
        b.cost_per_second
            .total_cmp(&a.cost_per_second)
            .then(b.last_seen.cmp(&a.last_seen))
            .then(a.hash.cmp(&b.hash))
    });
    rows
}

/// Cuts a name to [`NAME_BYTES_MAX`], between characters.
fn bounded(mut name: String) -> String {
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(end.unwrap_or(0));
    name
}

/// Converts a key to a table hash. The key is a hash already, but its top bit is always zero and
/// the table uses the top bits, so the halves are swapped.
fn spread(hash: KeyHash) -> u64 {
    hash.bits().rotate_left(32)
}

/// e to the `x`, for -700 < x < 700, to about 12 digits; `core` has no such function.
fn exp(x: f64) -> f64 {
    // x = k ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^k e^r and the series for e^r is short.
    let x = x.clamp(-700.0, 700.0);
    let k = (x * core::f64::consts::LOG2_E + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    let r = x - k as f64 * core::f64::consts::LN_2;
    let series = (1..=12).rev().fold(1.0, |sum, n| 1.0 + sum * r / f64::from(n));
    series * f64::from_bits(((k + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_that_of_the_standard_library() {
        for i in -6990..=6990 {
            let x = f64::from(i) / 10.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-12, "{x}: {} {}", exp(x), x.exp());
        }
    }
}
