//! Finds what the requests of strangers have in common that returning clients do not have.
//!
//! Each request has some *properties*: the hash of its network, its user agent, the fingerprint of
//! its handshake. A *group* is all requests with one property, or with two. A group whose part of
//! the strangers' cost is far above its part of the returning clients *burns*: its requests wait
//! behind those of all other strangers (`queue::Arrival::burns`). No request is refused, returning
//! clients in the group are not affected, and no list is kept by hand.
//!
//! Costs and clients are counted by group in two count-min sketches of fixed size, which fade. A
//! returning client is counted when it was served for the second, fourth, eighth time and so on, so
//! that a few busy ones do not speak for all. The caller chooses the properties.

use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// The number of properties of a request.
pub const PROPERTIES_MAX: usize = 8;
/// The number of groups that burn at once.
pub const BURNING_MAX: usize = 8;
/// The time between two evaluations.
const EVALUATED_EACH: Nanos = Nanos::from_secs(1);
/// What strangers have cost counts half after this time. Shorter: a pause of a swarm is forgotten.
/// Longer: a group burns for longer after its swarm has changed.
const COST_HALF_LIFE: Nanos = Nanos::from_secs(20);
/// What returning clients have in common counts half after this time: visitors of the day and of
/// the night differ.
const CLIENTS_HALF_LIFE: Nanos = Nanos::from_secs(3_600);
/// A group burns from this part of the strangers' cost on, in percent.
const BURNS_FROM_PERCENT: u64 = 10;
/// A group that burns does so down to this part.
const BURNS_TO_PERCENT: u64 = 5;
/// How many times its part of the returning clients that has to be. Lower: people that come from
/// where few came before wait behind others. Higher: a swarm needs to be more alike.
const FAR_ABOVE: u64 = 8;
/// The same for a group that burns.
const STILL_ABOVE: u64 = 4;
/// The number of clients that are added to those counted in a group, because none among few is not
/// the same as none: with 95 % certainty no more than three were missed (the rule of three).
const CLIENTS_DOUBT: u64 = 3;
/// The number of groups among which those are sought that burn.
const HEAVY_MAX: usize = 64;
/// The number of requests of strangers since the pressure began, before which no group burns.
const STRANGERS_MIN: u64 = 50;
/// A group is not named beside another one that has this part of its cost, in percent. Higher: what
/// happens to be like the swarm in some property waits with it.
const SAME_PERCENT: u64 = 75;
/// A group takes the place of a wider one if it has this part of its cost, in percent. What the
/// wider one has beside it are others that happen to be like the swarm.
const TIGHT_PERCENT: u64 = 95;

/// The properties of a request, by kind. `None`: it is unknown and part of no group.
pub type Properties = [Option<KeyHash>; PROPERTIES_MAX];

/// A group: all requests with these properties of these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwarmGroup {
    /// The kind and the property.
    pub first: (u8, KeyHash),
    /// A second one, of a later kind, that the requests must have as well.
    pub second: Option<(u8, KeyHash)>,
}

impl SwarmGroup {
    /// Whether a request belongs to the group.
    #[must_use]
    pub fn contains(&self, properties: &Properties) -> bool {
        let has = |(kind, property): (u8, KeyHash)| {
            properties.get(usize::from(kind)) == Some(&Some(property))
        };
        has(self.first) && self.second.is_none_or(has)
    }

    /// Whether all requests of `other` belong to this group.
    fn includes(&self, other: &SwarmGroup) -> bool {
        self.second.is_none() && (other.first == self.first || other.second == Some(self.first))
    }

    fn hash(&self) -> u64 {
        let second = self.second.map_or(0, |(_, property)| property.bits().rotate_left(31));
        mixed(self.first.1.bits() ^ second.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// A group that burns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurningGroup {
    /// The group.
    pub group: SwarmGroup,
    /// Its part of what strangers asked for, in thousandths.
    pub cost_milli: u64,
    /// The largest part of returning clients that may belong to it, in thousandths.
    pub clients_milli: u64,
    /// Since when it burns.
    pub since: Time,
}

/// Finds the groups that burn.
pub struct SwarmFinder {
    costs: Sketch,
    clients: Sketch,
    /// The groups with the greatest cost.
    heavy: Vec<(u64, SwarmGroup)>,
    burning: Vec<BurningGroup>,
    /// The number of requests of strangers since the pressure began.
    strangers: u64,
    evaluated: Time,
}

impl Default for SwarmFinder {
    fn default() -> SwarmFinder {
        SwarmFinder {
            costs: Sketch::new(COST_HALF_LIFE),
            clients: Sketch::new(CLIENTS_HALF_LIFE),
            heavy: Vec::new(),
            burning: Vec::new(),
            strangers: 0,
            evaluated: Time::ZERO,
        }
    }
}

impl SwarmFinder {
    /// Whether a returning client that has been served this many times is to be counted.
    #[must_use]
    pub const fn counts_client(served: u64) -> bool {
        served >= 2 && served.is_power_of_two()
    }

    /// Counts a request, and returns whether it burns. `served`: how often its client was served,
    /// if that is a returning client (`ClientHistory::served`). Call it for requests of strangers
    /// under pressure, and for those of clients for which [`SwarmFinder::counts_client`] holds.
    pub fn handle_request(
        &mut self,
        served: Option<u64>,
        properties: &Properties,
        cost: Cost,
        now: Time,
    ) -> bool {
        match served {
            Some(served) if SwarmFinder::counts_client(served) => {
                self.handle_client(properties, now);
                false
            }
            Some(_) => false,
            None => self.handle_stranger(properties, cost, now),
        }
    }

    fn handle_client(&mut self, properties: &Properties, now: Time) {
        self.clients.fade(now);
        self.clients.total = self.clients.total.saturating_add(1);
        for group in groups(properties) {
            self.clients.add(group.hash(), 1);
        }
    }

    /// Counts a request of a stranger while there is pressure. Returns whether it burns.
    fn handle_stranger(&mut self, properties: &Properties, cost: Cost, now: Time) -> bool {
        self.costs.fade(now);
        self.strangers += 1;
        // In microseconds, and never nothing.
        let cost = (cost.0 / 1_000).max(1);
        self.costs.total = self.costs.total.saturating_add(cost);
        for group in groups(properties) {
            let sum = self.costs.add(group.hash(), cost);
            self.note_heavy(sum, group);
        }
        if self.strangers >= STRANGERS_MIN && now.since(self.evaluated) >= EVALUATED_EACH {
            self.evaluated = now;
            self.evaluate(now);
        }
        self.burns(properties)
    }

    /// There is no pressure (any longer): nothing burns.
    pub fn handle_pressure_end(&mut self) {
        if self.strangers == 0 {
            return;
        }
        self.burning.clear();
        self.heavy.clear();
        self.strangers = 0;
        self.costs = Sketch::new(COST_HALF_LIFE);
    }

    /// The groups that burn, the one with the greatest cost first.
    #[must_use]
    pub fn burning(&self) -> &[BurningGroup] {
        &self.burning
    }

    /// Whether a request belongs to a group that burns.
    #[must_use]
    pub fn burns(&self, properties: &Properties) -> bool {
        self.burning.iter().any(|burning| burning.group.contains(properties))
    }

    /// Notes a group if its cost is among the greatest.
    fn note_heavy(&mut self, sum: u64, group: SwarmGroup) {
        if self.heavy.len() >= HEAVY_MAX && self.heavy.last().is_some_and(|last| sum <= last.0) {
            return;
        }
        match self.heavy.iter_mut().find(|(_, one)| *one == group) {
            Some(noted) => noted.0 = sum,
            None => self.heavy.push((sum, group)),
        }
        self.heavy.sort_unstable_by_key(|(sum, _)| Reverse(*sum));
        self.heavy.truncate(HEAVY_MAX);
    }

    /// Finds the groups that burn: first those with one property, then those with two.
    fn evaluate(&mut self, now: Time) {
        for heavy in &mut self.heavy {
            heavy.0 = self.costs.get(heavy.1.hash());
        }
        self.heavy.sort_unstable_by_key(|(sum, group)| (group.second.is_some(), Reverse(*sum)));
        let before = core::mem::take(&mut self.burning);
        for (sum, group) in &self.heavy {
            let burnt = before.iter().find(|one| one.group == *group);
            let burning = self.compared(*group, *sum, burnt.map_or(now, |one| one.since));
            let is_far = |burning: &BurningGroup| {
                let (percent, above) = match burnt {
                    Some(_) => (BURNS_TO_PERCENT, STILL_ABOVE),
                    None => (BURNS_FROM_PERCENT, FAR_ABOVE),
                };
                burning.cost_milli >= (10 * percent).max(above * burning.clients_milli)
            };
            if is_far(&burning) {
                match self.covering(group, *sum) {
                    None => self.burning.push(burning),
                    Some((at, true)) => self.burning[at] = burning,
                    Some((_, false)) => {}
                }
            }
            if self.burning.len() >= BURNING_MAX {
                break;
            }
        }
        self.burning.sort_unstable_by_key(|burning| Reverse(burning.cost_milli));
        self.heavy.sort_unstable_by_key(|(sum, _)| Reverse(*sum));
    }

    /// The parts of a group in the strangers' cost and in the returning clients.
    fn compared(&self, group: SwarmGroup, sum: u64, since: Time) -> BurningGroup {
        let clients = self.clients.get(group.hash()).saturating_add(CLIENTS_DOUBT);
        BurningGroup {
            group,
            cost_milli: ratio(sum.saturating_mul(1_000), self.costs.total),
            clients_milli: ratio(clients.saturating_mul(1_000), self.clients.total + CLIENTS_DOUBT),
            since,
        }
    }

    /// The group that burns already and has most requests of this one, and whether this one is to
    /// take its place, because it is narrower and has nearly all of its requests as well.
    fn covering(&self, group: &SwarmGroup, sum: u64) -> Option<(usize, bool)> {
        self.burning.iter().enumerate().find_map(|(at, burning)| {
            let shared = self.shared(&burning.group, group);
            let wider = self.costs.get(burning.group.hash());
            let is_tighter = sum < wider && shared >= wider / 100 * TIGHT_PERCENT;
            (shared >= sum / 100 * SAME_PERCENT).then_some((at, is_tighter))
        })
    }

    /// The least cost of the requests that belong to both groups, as far as sums by two properties
    /// tell. `one` does not have more properties than `other`.
    fn shared(&self, one: &SwarmGroup, other: &SwarmGroup) -> u64 {
        let cost = |first: (u8, KeyHash), second: (u8, KeyHash)| {
            let (low, high) = if first.0 < second.0 { (first, second) } else { (second, first) };
            self.costs.get(SwarmGroup { first: low, second: Some(high) }.hash())
        };
        let of = |property| self.costs.get(SwarmGroup { first: property, second: None }.hash());
        match (one.second, other.second) {
            _ if one == other || one.includes(other) => self.costs.get(other.hash()),
            (None, None) => cost(one.first, other.first),
            // Of those with `one.first`, all but these two rests have both other properties.
            (None, Some(second)) => {
                let both = cost(one.first, other.first).saturating_add(cost(one.first, second));
                both.saturating_sub(of(one.first))
            }
            (Some(second), _) if one.first == other.first || second == other.first => {
                let both = self.costs.get(one.hash()).saturating_add(self.costs.get(other.hash()));
                both.saturating_sub(of(other.first))
            }
            (Some(_), _) => 0,
        }
    }
}

fn ratio(part: u64, of: u64) -> u64 {
    part.checked_div(of).unwrap_or(0)
}

/// All groups that a request belongs to.
fn groups(properties: &Properties) -> impl Iterator<Item = SwarmGroup> + '_ {
    let known = |(kind, property): (usize, &Option<KeyHash>)| Some((kind as u8, (*property)?));
    let all = move || properties.iter().enumerate().filter_map(known);
    all().flat_map(move |first| {
        let single = core::iter::once(SwarmGroup { first, second: None });
        let later = all().filter(move |second| second.0 > first.0);
        single.chain(later.map(move |second| SwarmGroup { first, second: Some(second) }))
    })
}

/// The number of rows of a sketch, each with its own hash.
const ROWS: usize = 4;
/// The number of counters of a row. A group that was never counted seems to have up to a few
/// thousandths of the total.
const COLUMNS: usize = 4_096;

/// Sums by key in fixed memory (count-min with conservative update). A sum is never too low.
struct Sketch {
    counters: Box<[u64]>,
    total: u64,
    half_life: Nanos,
    /// When all sums were last halved; `None` before the first.
    halved: Option<Time>,
}

impl Sketch {
    fn new(half_life: Nanos) -> Sketch {
        let counters = alloc::vec![0; ROWS * COLUMNS].into_boxed_slice();
        Sketch { counters, total: 0, half_life, halved: None }
    }

    /// Halves all sums as often as their half-life has passed.
    fn fade(&mut self, now: Time) {
        let since = *self.halved.get_or_insert(now);
        let times = now.since(since).0 / self.half_life.0.max(1);
        if times > 0 {
            let shift = u32::try_from(times).unwrap_or(u32::MAX);
            let halved = |count: u64| count.checked_shr(shift).unwrap_or(0);
            self.counters.iter_mut().for_each(|count| *count = halved(*count));
            self.total = halved(self.total);
            self.halved = Some(now);
        }
    }

    /// The places of a key, one in each row.
    fn places(key: u64) -> [usize; ROWS] {
        let (low, high) = (key as usize, (key >> 32) as usize | 1);
        core::array::from_fn(|row| row * COLUMNS + low.wrapping_add(row * high) % COLUMNS)
    }

    fn get(&self, key: u64) -> u64 {
        let counts = Sketch::places(key).map(|at| self.counters.get(at).copied().unwrap_or(0));
        counts.into_iter().min().unwrap_or(0)
    }

    /// Adds to a sum, and returns it.
    fn add(&mut self, key: u64, more: u64) -> u64 {
        let sum = self.get(key).saturating_add(more);
        for at in Sketch::places(key) {
            if let Some(count) = self.counters.get_mut(at) {
                *count = (*count).max(sum);
            }
        }
        sum
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
const fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
