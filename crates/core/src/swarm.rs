//! Finds what the requests of strangers have in common that returning clients do not have.
//!
//! Each request has some *properties*: the hash of its network, its user agent, the fingerprint of
//! its handshake. Costs and clients are counted by *combinations* of one property and of two.
//! Strangers *burn* if their combination has a part of the strangers' cost far above its part of
//! the returning clients: they wait behind all other strangers (`queue::Arrival::burns`). Their
//! *group* has all properties that nearly all of them share, so that a newcomer who is like them in
//! some of these does not burn. No request is refused, returning clients in the group are not
//! affected, and no list is kept by hand.
//!
//! The counts are in two count-min sketches of fixed size, which fade. A returning client counts
//! when it is served for the second, fourth, eighth time and so on, but not ever more often in a
//! short time, and a stranger counts once in ten seconds. So a few busy clients neither speak for
//! all nor look like a swarm. The caller chooses the properties.

use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

/// The number of properties of a request.
pub const PROPERTIES_MAX: usize = 8;
/// The number of groups that burn at once.
pub const BURNING_MAX: usize = 8;
/// The time between two evaluations.
const EVALUATED_EACH: Nanos = Nanos::from_secs(1);
/// The cost of strangers counts half after this time. Shorter: a pause of a swarm is forgotten.
/// Longer: a group burns for longer after its swarm has changed.
const COST_HALF_LIFE: Nanos = Nanos::from_secs(20);
/// The properties of returning clients count half after this time: visitors of the day and of
/// the night differ.
const CLIENTS_HALF_LIFE: Nanos = Nanos::from_secs(3_600);
/// A returning client is counted this many times at once, and then once in this time. Lower: a
/// site with few clients does not know what they have in common. Higher: one with many requests
/// speaks for many.
const COUNTED_AT_ONCE: u64 = 4;
const COUNTED_EACH: Nanos = Nanos::from_secs(600);
/// A stranger counts once in this time. Shorter: a few strangers that ask often seem to be a swarm.
/// Longer: of a swarm with few addresses less is seen.
const STRANGER_COUNTED_EACH: Nanos = Nanos::from_secs(10);
/// The number of strangers whose last count is remembered. With more strangers at once, some count
/// more often.
const STRANGERS_REMEMBERED: usize = 1_024;
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
/// The number of counted requests of strangers since the pressure began, before which no group
/// burns.
const STRANGERS_MIN: u64 = 50;
/// A group has the properties that this part of its cost has, in percent. Higher: more newcomers
/// that are like a swarm in some properties wait with it. Lower: more of the swarm does not burn.
const SHARED_PERCENT: u64 = 90;
/// A property that this part of the returning clients has, in percent, tells nothing of a group.
const COMMON_PERCENT: u64 = 50;
/// Strangers do not make a group of their own if this part of their cost may belong to another one,
/// in percent. Higher: the same swarm is named more than once.
const COVERED_PERCENT: u64 = 75;

/// The properties of a request, by kind. `None`: it is unknown and part of no group.
pub type Properties = [Option<KeyHash>; PROPERTIES_MAX];

/// A group: all requests with these properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwarmGroup(Properties);

impl SwarmGroup {
    /// Whether a request belongs to the group.
    #[must_use]
    pub fn contains(&self, properties: &Properties) -> bool {
        let mut both = self.0.iter().zip(properties);
        both.all(|(own, other)| own.is_none() || own == other)
    }

    /// The kinds of the properties that the requests of the group have in common.
    pub fn kinds(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().filter_map(|(kind, property)| property.map(|_| kind))
    }

    fn properties(&self) -> impl Iterator<Item = Property> + '_ {
        known(&self.0)
    }
}

/// A property and its kind.
type Property = (u8, KeyHash);

/// One property, or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Combination {
    first: Property,
    /// Of a later kind.
    second: Option<Property>,
}

impl Combination {
    const fn one(property: Property) -> Combination {
        Combination { first: property, second: None }
    }

    /// Two properties, which may be the same one; `None` if no request can have both.
    fn both(one: Property, other: Property) -> Option<Combination> {
        match one.0.cmp(&other.0) {
            Ordering::Less => Some(Combination { first: one, second: Some(other) }),
            Ordering::Greater => Some(Combination { first: other, second: Some(one) }),
            Ordering::Equal => (one == other).then_some(Combination::one(one)),
        }
    }

    fn properties(self) -> impl Iterator<Item = Property> {
        core::iter::once(self.first).chain(self.second)
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
    /// Stays the same while it burns, also if what its requests have in common changes.
    pub id: u64,
}

/// Finds the groups that burn.
pub struct SwarmFinder {
    costs: Sketch,
    clients: Sketch,
    /// The common properties of strangers with the greatest cost, with that cost.
    heavy: Vec<(u64, Combination)>,
    burning: Vec<BurningGroup>,
    /// The id of the group that began to burn last.
    last_id: u64,
    /// The number of counted requests of strangers since the pressure began.
    strangers: u64,
    /// For each place the stranger that was counted last, and when. The place follows from the key.
    counted: Box<[Option<(KeyHash, Time)>]>,
    evaluated: Time,
}

impl Default for SwarmFinder {
    fn default() -> SwarmFinder {
        SwarmFinder {
            costs: Sketch::new(COST_HALF_LIFE),
            clients: Sketch::new(CLIENTS_HALF_LIFE),
            heavy: Vec::new(),
            burning: Vec::new(),
            last_id: 0,
            strangers: 0,
            counted: alloc::vec![None; STRANGERS_REMEMBERED].into_boxed_slice(),
            evaluated: Time::ZERO,
        }
    }
}

impl SwarmFinder {
    /// Whether a request of a returning client is to be counted, which has been served this many
    /// times and was served for the second time so long ago: the second, fourth, eighth and so on,
    /// but after the sixteenth no more than one in ten minutes. A few clients with many requests
    /// must not speak for all.
    #[must_use]
    pub const fn counts_client(served: u64, known_for: Nanos) -> bool {
        let times = served.trailing_zeros() as u64;
        let most = COUNTED_AT_ONCE + known_for.0 / COUNTED_EACH.0;
        served.is_power_of_two() && 0 < times && times <= most
    }

    /// Counts a request of `client`, and returns whether it burns. `is_returning`: it is of a
    /// returning client (`ClientHistory::returning`). Call it for requests of strangers under
    /// pressure, and for those of returning clients for which [`SwarmFinder::counts_client`] holds.
    pub fn handle_request(
        &mut self,
        is_returning: bool,
        client: KeyHash,
        properties: &Properties,
        cost: Cost,
        now: Time,
    ) -> bool {
        if is_returning {
            self.handle_client(properties, now);
            return false;
        }
        if self.counts_stranger(client, now) {
            self.handle_stranger(properties, cost, now);
        }
        self.burns(properties)
    }

    /// Whether a request of a stranger is to be counted.
    fn counts_stranger(&mut self, client: KeyHash, now: Time) -> bool {
        let place = client.bits() as usize % STRANGERS_REMEMBERED;
        let Some(last) = self.counted.get_mut(place) else { return true };
        let was = last.filter(|(counted, _)| *counted == client);
        let counts = was.is_none_or(|(_, then)| now.since(then) >= STRANGER_COUNTED_EACH);
        if counts {
            *last = Some((client, now));
        }
        counts
    }

    fn handle_client(&mut self, properties: &Properties, now: Time) {
        self.clients.fade(now);
        self.clients.total = self.clients.total.saturating_add(1);
        for one in combinations(properties) {
            self.clients.add(one.hash(), 1);
        }
    }

    /// Counts a request of a stranger while there is pressure.
    fn handle_stranger(&mut self, properties: &Properties, cost: Cost, now: Time) {
        self.costs.fade(now);
        self.strangers += 1;
        // In microseconds, and never nothing.
        let cost = (cost.0 / 1_000).max(1);
        self.costs.total = self.costs.total.saturating_add(cost);
        for one in combinations(properties) {
            let sum = self.costs.add(one.hash(), cost);
            self.note_heavy(sum, one);
        }
        if self.strangers >= STRANGERS_MIN && now.since(self.evaluated) >= EVALUATED_EACH {
            self.evaluated = now;
            self.evaluate(now);
        }
    }

    /// There is no pressure (any longer): nothing burns.
    pub fn handle_pressure_end(&mut self) {
        if self.strangers == 0 {
            return;
        }
        self.burning.clear();
        self.heavy.clear();
        self.strangers = 0;
        self.counted.fill(None);
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

    /// Notes a combination if its cost is among the greatest.
    fn note_heavy(&mut self, sum: u64, heavy: Combination) {
        if self.heavy.len() >= HEAVY_MAX && self.heavy.last().is_some_and(|last| sum <= last.0) {
            return;
        }
        match self.heavy.iter_mut().find(|(_, one)| *one == heavy) {
            Some(noted) => noted.0 = sum,
            None => self.heavy.push((sum, heavy)),
        }
        self.heavy.sort_unstable_by_key(|(sum, _)| Reverse(*sum));
        self.heavy.truncate(HEAVY_MAX);
    }

    /// Finds the groups that burn: first by one property, then by two.
    fn evaluate(&mut self, now: Time) {
        for heavy in &mut self.heavy {
            heavy.0 = self.costs.get(heavy.1.hash());
        }
        self.heavy.sort_unstable_by_key(|(sum, one)| (one.second.is_some(), Reverse(*sum)));
        let before = core::mem::take(&mut self.burning);
        for (sum, heavy) in &self.heavy {
            let is_taken = |id| self.burning.iter().any(|burning| burning.id == id);
            let burnt = before.iter().find(|one| has(&one.group.0, *heavy) && !is_taken(one.id));
            let (percent, above) = match burnt {
                Some(_) => (BURNS_TO_PERCENT, STILL_ABOVE),
                None => (BURNS_FROM_PERCENT, FAR_ABOVE),
            };
            let (cost_milli, clients_milli) = self.parts(*heavy, *sum);
            let is_far = cost_milli >= (10 * percent).max(above * clients_milli);
            if is_far && !self.is_covered(*heavy, *sum) {
                let (since, id) = burnt.map_or((now, self.last_id + 1), |one| (one.since, one.id));
                self.last_id = self.last_id.max(id);
                let group = self.completed(*heavy, *sum);
                self.burning.push(BurningGroup { group, cost_milli, clients_milli, since, id });
            }
            if self.burning.len() >= BURNING_MAX {
                break;
            }
        }
        self.burning.sort_unstable_by_key(|burning| Reverse(burning.cost_milli));
        self.heavy.sort_unstable_by_key(|(sum, _)| Reverse(*sum));
    }

    /// The group of all requests with a combination: what nearly all of these have in common, but
    /// not what many returning clients have as well.
    fn completed(&self, heavy: Combination, sum: u64) -> SwarmGroup {
        let mut group = Properties::default();
        for (kind, property) in heavy.properties() {
            group[usize::from(kind)] = Some(property);
        }
        let common = percent(self.clients.total, COMMON_PERCENT);
        for (_, one) in self.heavy.iter().filter(|(_, one)| one.second.is_none()) {
            let (kind, property) = one.first;
            let is_common = self.clients.get(one.hash()) > common;
            let of_group = &mut group[usize::from(kind)];
            if of_group.is_none() && !is_common && self.is_shared(heavy, sum, one.first) {
                *of_group = Some(property);
            }
        }
        SwarmGroup(group)
    }

    /// Whether nearly all requests with a combination have a property as well, as far as costs by
    /// two properties tell.
    fn is_shared(&self, heavy: Combination, sum: u64, property: Property) -> bool {
        // Of those with one of its properties, all but this rest have the combination.
        let rest = |one: Property| self.cost(Combination::one(one)).saturating_sub(sum);
        let shared = |one| {
            let both = Combination::both(one, property).map_or(0, |both| self.cost(both));
            both.saturating_sub(rest(one))
        };
        heavy.properties().any(|one| shared(one) >= percent(sum, SHARED_PERCENT))
    }

    /// The parts of a combination in the strangers' cost and in the returning clients, in
    /// thousandths.
    fn parts(&self, heavy: Combination, sum: u64) -> (u64, u64) {
        let clients = self.clients.get(heavy.hash()).saturating_add(CLIENTS_DOUBT);
        let total = self.clients.total.saturating_add(CLIENTS_DOUBT);
        let milli = |part: u64, of: u64| part.saturating_mul(1_000).checked_div(of).unwrap_or(0);
        (milli(sum, self.costs.total), milli(clients, total))
    }

    /// Whether most requests with a combination may belong to a group that burns already.
    fn is_covered(&self, heavy: Combination, sum: u64) -> bool {
        self.burning.iter().any(|burning| {
            let with = |own| heavy.properties().map(move |one| Combination::both(own, one));
            let pairs = burning.group.properties().flat_map(with);
            let most = pairs.map(|pair| pair.map_or(0, |pair| self.cost(pair))).min();
            most.is_some_and(|most| most >= percent(sum, COVERED_PERCENT))
        })
    }

    fn cost(&self, of: Combination) -> u64 {
        self.costs.get(of.hash())
    }
}

const fn percent(of: u64, percent: u64) -> u64 {
    of.saturating_mul(percent) / 100
}

/// The properties that are known.
fn known(properties: &Properties) -> impl Iterator<Item = Property> + '_ {
    let known = |(kind, property): (usize, &Option<KeyHash>)| Some((kind as u8, (*property)?));
    properties.iter().enumerate().filter_map(known)
}

/// Whether requests with these properties have a combination.
fn has(properties: &Properties, heavy: Combination) -> bool {
    heavy.properties().all(|(kind, one)| properties.get(usize::from(kind)) == Some(&Some(one)))
}

/// All combinations that a request has.
fn combinations(properties: &Properties) -> impl Iterator<Item = Combination> + '_ {
    known(properties).flat_map(move |first| {
        let later = known(properties).filter(move |second| second.0 > first.0);
        let pairs = later.map(move |second| Combination { first, second: Some(second) });
        core::iter::once(Combination::one(first)).chain(pairs)
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
