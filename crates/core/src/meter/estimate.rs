//! Learns what requests cost, by route and in bounded memory, and predicts the cost of new ones.
//!
//! A route is a method and a path in which every word that names one thing of many (numbers, UUIDs,
//! hashes) is folded: `/user/17/cart` and `/user/4711/cart` are one route. For each route there is
//! a mean and a spread, in which older costs fade by number and by time. An unknown route is
//! expected to cost the mean of what others cost when they were unknown.
//!
//! A search may be light for people and heavy for crawlers. So the same is learned for each route
//! and client. If the mean of a client differs from that of the route by more than chance explains,
//! it is the estimate for this client. A route is the mean over clients rather than requests: one
//! client with many requests does not decide the estimate for others. A single cost far
//! above the expected one is not believed, because the machine may have stood still.
//!
//! Both are stored in small sets. When a set is full, the route that was used least, and longest
//! ago, is evicted. So a flood of paths that lead nowhere only evicts the routes that weigh least.
//! A wrong estimate does no lasting harm, because accounts are settled with actual costs. Why:
//! docs/adr/0010.

use crate::key::{KeyHash, KeyHasher, KeySeed};
use crate::units::{Cost, Nanos, Time};
use alloc::string::String;
use alloc::vec::Vec;

/// The expected cost of a request before anything is known.
pub const COST_DEFAULT: Cost = Cost::cpu(Nanos::from_millis(1));
/// The largest number of routes that can be remembered.
pub const ROUTES_MAX: usize = 1 << 20;
/// The time after which what was learned counts half. Shorter: rare routes are forgotten between
/// two uses. Longer: a site that changes is misjudged for longer.
pub const COST_HALF_LIFE: Nanos = Nanos::from_secs(600);
/// The largest weight of all earlier costs of a route, against 1 for the next one.
const WEIGHT_MAX: f64 = 31.0;
/// The number of routes in a set.
const ROUTES_PER_SET: usize = 8;
/// A cost above this many times the expected one is odd.
const ODD_COST_RATIO: u64 = 4;
/// An odd cost after at least this many others, of the route and of the client, counts only as
/// [`ODD_COST_RATIO`] times the expected one: the machine may have stood still. Fewer: what is
/// heavy now and then passes for light. More: a few disturbed requests make a route heavy.
const ORDINARY_MIN: u8 = 31;
/// The costs of a client differ from those of its route if the distance of the means exceeds this
/// many spreads of the route, divided by the root of the number of the client's costs. Fewer: a
/// client with both light and heavy requests passes for light after some light ones. More: a client
/// needs more requests until it is judged by its own.
const SPREADS_MIN: f64 = 4.0;
/// A request that costs more than this is counted at this cost.
const COST_MAX: Cost = Cost::cpu(Nanos::from_secs(3_600));

const _: () = {
    assert!(COST_DEFAULT.0 < COST_MAX.0);
    assert!(ROUTES_MAX.is_multiple_of(ROUTES_PER_SET), "sets are whole");
};
/// The number of hexadecimal digits from which on a word is a hash: with a decimal digit among
/// them, and without.
const HEX_DIGITS_MIN: (usize, usize) = (8, 16);
/// The number of letters and digits from which on a word with a digit in it is a token.
const TOKEN_LENGTH_MIN: usize = 20;
/// The lengths of the parts of a UUID.
const UUID_PART_LENGTHS: [usize; 5] = [8, 4, 4, 4, 12];

/// Identifies the route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteHash(KeyHash);

impl RouteHash {
    /// Stands for all unknown routes.
    pub const UNKNOWN: RouteHash = RouteHash(KeyHash::from_bits(0));

    /// The route of a request. The path is used as it is, so normalise it first
    /// (`classify::normal_path`), or one route is learned several times. The path may include a
    /// query: its names count, its values do not.
    #[must_use]
    pub fn of(seed: &KeySeed, method: &str, path: &str) -> RouteHash {
        let mut hasher = KeyHasher::new(seed);
        hasher.part(method.as_bytes());
        for_each_folded(path, |piece| hasher.last_part(piece.as_bytes()));
        RouteHash(hasher.finish())
    }

    /// The route as one client uses it. Both hashes are keyed, so an outsider cannot choose where
    /// their combination is stored.
    #[must_use]
    pub const fn used_by(self, client: KeyHash) -> RouteHash {
        // The finaliser of splitmix64, shortened.
        let both = self.bits() ^ client.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (both ^ (both >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        RouteHash(KeyHash::from_bits(mixed ^ (mixed >> 27)))
    }

    /// The route as another instance sees it. The cost that this instance states holds for its
    /// own requests. The lowest bits stay, so that times of one route are compared with each other.
    #[must_use]
    pub(crate) const fn seen_by(self, node: u64) -> RouteHash {
        const KEPT: u64 = 0xff;
        let other = self.used_by(KeyHash::from_bits(node)).bits() & !KEPT;
        RouteHash(KeyHash::from_bits(other | self.bits() & KEPT))
    }

    /// The route with this hash, which another instance has computed.
    pub(crate) const fn from_hash(hash: KeyHash) -> RouteHash {
        RouteHash(hash)
    }

    /// The hash as a number.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.bits()
    }
}

/// A path with `*` for each word in it that names one thing of many, and without the values of its
/// query.
#[must_use]
pub fn fold(path: &str) -> String {
    let mut folded = String::with_capacity(path.len());
    for_each_folded(path, |piece| folded.push_str(piece));
    folded
}

/// Calls `each` with the pieces of the folded path, in order.
fn for_each_folded(path: &str, mut each: impl FnMut(&str)) {
    let end = path.bytes().position(|byte| byte == b'?').unwrap_or(path.len());
    fold_words(&path[..end], &mut each);
    let query = path.get(end + 1..);
    for (index, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        each(if index == 0 { "?" } else { "&" });
        fold_words(pair.split('=').next().unwrap_or_default(), &mut each);
    }
}

fn fold_words(text: &str, each: &mut impl FnMut(&str)) {
    let (mut kept, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        let word = Word::first(rest);
        let is_uuid = word.length == UUID_PART_LENGTHS[0] && is_uuid(rest);
        let length = if is_uuid { UUID_LENGTH } else { word.length };
        if is_uuid || word.names_one_of_many() {
            each(&text[kept..at]);
            each("*");
            kept = at + length;
        }
        // Skip the word and the byte that ends it.
        at += length + 1;
    }
    if kept < text.len() {
        each(&text[kept..]);
    }
}

/// All parts of a UUID and the hyphens between.
const UUID_LENGTH: usize = 36;

/// The kind of a byte; zero if it is neither a letter nor a digit.
const BYTE_KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let of = byte as u8;
        kinds[byte] |= if of.is_ascii_alphanumeric() { kind::LETTER_OR_DIGIT } else { 0 };
        kinds[byte] |= if of.is_ascii_hexdigit() { kind::HEX_DIGIT } else { 0 };
        kinds[byte] |= if of.is_ascii_digit() { kind::DIGIT } else { 0 };
        byte += 1;
    }
    kinds
};

/// The bits in [`BYTE_KINDS`].
mod kind {
    pub const LETTER_OR_DIGIT: u8 = 1;
    pub const HEX_DIGIT: u8 = 2;
    pub const DIGIT: u8 = 4;
}

/// Letters and digits in a row, counted in bytes.
struct Word {
    length: usize,
    digits: usize,
    hex_digits: usize,
}

impl Word {
    /// The word that `bytes` begin with.
    fn first(bytes: &[u8]) -> Word {
        let mut word = Word { length: 0, digits: 0, hex_digits: 0 };
        for byte in bytes {
            let kind = BYTE_KINDS[usize::from(*byte)];
            if kind == 0 {
                break;
            }
            word.length += 1;
            word.digits += usize::from(kind & kind::DIGIT > 0);
            word.hex_digits += usize::from(kind & kind::HEX_DIGIT > 0);
        }
        word
    }

    /// Whether it is a number, a hash or a token.
    fn names_one_of_many(&self) -> bool {
        let Word { length, digits, hex_digits } = *self;
        let hash_min = if digits > 0 { HEX_DIGITS_MIN.0 } else { HEX_DIGITS_MIN.1 };
        length > 0
            && (digits == length
                || (hex_digits == length && length >= hash_min)
                || (digits > 0 && length >= TOKEN_LENGTH_MIN))
    }
}

/// Whether `bytes` begin with a UUID.
fn is_uuid(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    for (index, length) in UUID_PART_LENGTHS.into_iter().enumerate() {
        if index > 0 {
            let Some(after) = rest.strip_prefix(b"-") else { return false };
            rest = after;
        }
        let word = Word::first(rest);
        if (word.length, word.hex_digits) != (length, length) {
            return false;
        }
        rest = &rest[length..];
    }
    true
}

/// A mean that fades, and the spread of costs around it.
#[derive(Clone, Copy, Debug, Default)]
struct LearnedCost {
    /// The weight of all costs learned so far; zero: none.
    weight: f64,
    mean: f64,
    /// The mean distance from the mean.
    spread: f64,
    last: Time,
    /// The number of costs that are still to come until an odd one is doubted again.
    odd_left: u8,
}

impl LearnedCost {
    /// The weight at `now`: halved every [`COST_HALF_LIFE`], linearly in between.
    fn weight_at(&self, now: Time) -> f64 {
        let age = now.since(self.last).0;
        let halvings = (age / COST_HALF_LIFE.0).min(1_000) as u32;
        let part = (age % COST_HALF_LIFE.0) as f64 / COST_HALF_LIFE.0 as f64;
        let whole = f64::from_bits(u64::from(1_023 - halvings) << 52);
        self.weight * whole * (1.0 - part / 2.0)
    }

    /// The mean cost.
    fn cost(&self) -> Cost {
        Cost((self.mean + 0.5) as u64)
    }

    /// The mean distance from the mean.
    fn spread(&self) -> Cost {
        Cost((self.spread + 0.5) as u64)
    }

    /// Learns a cost with a weight of at most 1.
    fn learn(&mut self, cost: Cost, weight: f64, weight_max: f64, now: Time) {
        let before = self.weight_at(now).min(weight_max);
        let cost = cost.min(COST_MAX).0 as f64;
        self.weight = before + weight;
        let part = weight / self.weight;
        self.mean += (cost - self.mean) * part;
        let distance = if cost > self.mean { cost - self.mean } else { self.mean - cost };
        self.spread += (distance - self.spread) * part;
        self.last = self.last.max(now);
    }

    /// Notes a cost that is odd or not. Returns whether there was an odd one not long before.
    fn note_odd(&mut self, is_odd: bool) -> bool {
        let before = self.odd_left;
        self.odd_left = if is_odd { ORDINARY_MIN } else { before.saturating_sub(1) };
        before > 0
    }

    /// Whether these costs of a client on a route differ from those of the route by more than
    /// chance explains, or hardly any other client uses it.
    fn differs_from(&self, route: &LearnedCost) -> bool {
        let (distance, spread) = (self.mean - route.mean, SPREADS_MIN * route.spread);
        self.weight * distance * distance > spread * spread || self.weight > route.weight
    }
}

/// The prediction for a request that arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostForecast {
    /// The route of the request; `None` if the caller does not need it.
    pub route: Option<RouteHash>,
    /// The route as the client uses it; `None` if the client is unknown.
    pub own: Option<OwnRoute>,
    /// The expected cost.
    pub cost: Cost,
    /// The mean distance of costs from the expected one.
    pub spread: Cost,
    /// Whether the cost of the route is unknown, so that `cost` is that of unknown routes or the
    /// default.
    pub is_guess: bool,
}

/// A route as one client uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRoute {
    /// Identifies the route and the client.
    pub hash: RouteHash,
    /// Whether the expected cost is that of this client, because it differs from that of the route
    /// by more than chance explains.
    pub is_known: bool,
}

/// The expected costs after a request has ended: that of its route, that of its client on it if it
/// differs, and that of unknown routes if its route was one.
pub type LearnedCosts = [Option<(RouteHash, Cost)>; 3];

#[derive(Clone, Copy, Debug)]
struct LearnedRoute {
    hash: RouteHash,
    learned: LearnedCost,
}

/// Learned costs in small sets.
#[derive(Clone, Debug)]
struct CostTable(Vec<[Option<LearnedRoute>; ROUTES_PER_SET]>);

impl CostTable {
    fn new(routes_max: usize) -> CostTable {
        CostTable(alloc::vec![[None; ROUTES_PER_SET]; routes_max.div_ceil(ROUTES_PER_SET)])
    }

    fn known(&self, route: RouteHash) -> Option<&LearnedCost> {
        let set = self.0.get(self.set_of(route))?;
        set.iter().flatten().find(|one| one.hash == route).map(|one| &one.learned)
    }

    /// The costs of a route. A new one replaces the lightest of its set. `None` if the table has no
    /// sets.
    fn entry(&mut self, route: RouteHash, now: Time) -> Option<&mut LearnedCost> {
        let set = self.set_of(route);
        let set = self.0.get_mut(set)?;
        let known = set.iter().position(|slot| slot.is_some_and(|one| one.hash == route));
        let place = known.unwrap_or_else(|| lightest(set, now));
        let slot = &mut set[place];
        if known.is_none() {
            *slot = None;
        }
        let fresh = LearnedRoute { hash: route, learned: LearnedCost::default() };
        Some(&mut slot.get_or_insert(fresh).learned)
    }

    fn set_of(&self, route: RouteHash) -> usize {
        ((u128::from(route.bits()) * self.0.len() as u128) >> 63) as usize
    }
}

/// The learned costs of a site's routes.
#[derive(Clone, Debug)]
pub struct Estimates {
    routes: CostTable,
    /// The routes as single clients use them.
    own: CostTable,
    /// The first costs of routes.
    unknown: LearnedCost,
}

impl Estimates {
    /// Remembers at most `routes_max` routes, clamped to 8 to [`ROUTES_MAX`] and rounded up to
    /// whole sets of eight. The memory, some 56 bytes a route, is allocated at once. Too few: rare
    /// routes are assumed to cost the average.
    #[must_use]
    pub fn new(routes_max: usize) -> Estimates {
        Estimates {
            routes: CostTable::new(routes_max.clamp(ROUTES_PER_SET, ROUTES_MAX)),
            own: CostTable::new(0),
            unknown: LearnedCost::default(),
        }
    }

    /// Also remembers at most `own_max` pairs of a route and a client, at 56 bytes each, up to
    /// [`ROUTES_MAX`]. Too few: clients that come seldom are assumed to cost what others do.
    #[must_use]
    pub fn with_clients(self, own_max: usize) -> Estimates {
        Estimates { own: CostTable::new(own_max.min(ROUTES_MAX)), ..self }
    }

    /// The expected cost of a request on `route`.
    #[must_use]
    pub fn of(&self, route: RouteHash) -> Cost {
        self.learned(route).map_or(COST_DEFAULT, LearnedCost::cost)
    }

    /// The expected cost of a request of `client` on `route`, and whether it is a guess.
    #[must_use]
    pub fn forecast(&self, route: RouteHash, client: Option<KeyHash>) -> CostForecast {
        let known = self.routes.known(route);
        let hash = client.map(|client| route.used_by(client));
        let own = hash.and_then(|hash| self.own.known(hash));
        let own = own.filter(|own| known.is_some_and(|known| own.differs_from(known)));
        let learned = own.or_else(|| self.learned(route));
        let cost = learned.map_or(COST_DEFAULT, LearnedCost::cost);
        let spread = learned.map_or(COST_DEFAULT, LearnedCost::spread);
        let own = hash.map(|hash| OwnRoute { hash, is_known: own.is_some() });
        CostForecast { route: Some(route), own, cost, spread, is_guess: known.is_none() }
    }

    /// The likely error of the expected cost: the mean distance of costs from their mean. Before
    /// anything is known it equals the default cost itself.
    #[must_use]
    pub fn spread(&self, route: RouteHash) -> Cost {
        self.learned(route).map_or(COST_DEFAULT, LearnedCost::spread)
    }

    /// Learns that a request on `route` has cost `cost`. Returns the expected cost of the next one.
    pub fn learn(&mut self, route: RouteHash, cost: Cost, now: Time) -> Cost {
        self.learn_request(route, None, cost, now);
        self.of(route)
    }

    /// Learns that a request on `route`, as `own` uses it, has cost `cost`. The more requests of a
    /// client are known, the less one of them counts for the route.
    pub fn learn_request(
        &mut self,
        route: RouteHash,
        own: Option<OwnRoute>,
        cost: Cost,
        now: Time,
    ) -> LearnedCosts {
        let mut mine = own.and_then(|own| self.own.entry(own.hash, now));
        let Some(all) = self.routes.entry(route, now) else { return [None; 3] };
        if all.weight == 0.0 {
            // Too little is known of a new route to doubt a cost.
            all.odd_left = ORDINARY_MIN;
        }
        let differing = mine.as_deref().filter(|mine| mine.differs_from(all));
        let usual = differing.map_or(*all, |mine| *mine);
        let most = Cost(usual.cost().0.saturating_mul(ODD_COST_RATIO));
        let is_odd = usual.weight > 0.0 && cost > most;
        let repeated =
            all.note_odd(is_odd) | mine.as_deref_mut().is_some_and(|mine| mine.note_odd(is_odd));
        let cost = if is_odd && !repeated { most } else { cost };
        let is_new = all.weight == 0.0;
        if is_new {
            self.unknown.learn(cost, 1.0, WEIGHT_MAX, now);
        }
        let count = mine.as_deref_mut().map_or(1.0, |mine| {
            mine.learn(cost, 1.0, WEIGHT_MAX, now);
            mine.weight
        });
        all.learn(cost, 1.0 / count, WEIGHT_MAX, now);
        let differing = mine.filter(|mine| mine.differs_from(all));
        let own = own.zip(differing).map(|(own, mine)| (own.hash, mine.cost()));
        let unknown = is_new.then(|| (RouteHash::UNKNOWN, self.unknown.cost()));
        [Some((route, all.cost())), own, unknown]
    }

    /// The number of routes that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.0.iter().flatten().flatten().count()
    }

    /// Whether no cost has been learned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unknown.weight == 0.0
    }

    /// The costs of a route or, if it is unknown, of unknown routes.
    fn learned(&self, route: RouteHash) -> Option<&LearnedCost> {
        self.routes.known(route).or((self.unknown.weight > 0.0).then_some(&self.unknown))
    }
}

/// The slot of a set that is free or weighs least.
fn lightest(set: &[Option<LearnedRoute>; ROUTES_PER_SET], now: Time) -> usize {
    let weight = |place: &usize| set[*place].map_or(-1.0, |one| one.learned.weight_at(now));
    let lighter = |a: &usize, b: &usize| weight(a).total_cmp(&weight(b));
    (0..ROUTES_PER_SET).min_by(lighter).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_one_of_many_is_folded() {
        for (path, folded) in [
            ("/", "/"),
            ("/about/team", "/about/team"),
            ("/user/17/cart", "/user/*/cart"),
            ("/img_0012.jpg", "/img_*.jpg"),
            ("/v1/h264/page2", "/v1/h264/page2"),
            ("/o/123e4567-e89b-12d3-a456-426614174000/x", "/o/*/x"),
            ("/o/123e4567-e89b-12d3-a456-42661417400g", "/o/*-e89b-12d3-a456-42661417400g"),
            ("/commit/e3d3bed7", "/commit/*"),
            ("/static/app.9f86d081884c7d65.js", "/static/app.*.js"),
            ("/decade/facade/feed", "/decade/facade/feed"),
            ("/s/xK3jd8fKq02LmZp9TyRw", "/s/*"),
            ("/internationalization", "/internationalization"),
            ("/stra\u{df}e/12\u{df}13", "/stra\u{df}e/*\u{df}*"),
            ("/find?q=shoes&page=3&_=1732147161", "/find?q&page&_"),
            ("/find?1732147161", "/find?*"),
            ("/*/x?", "/*/x?"),
        ] {
            assert_eq!(fold(path), folded, "{path}");
            assert_eq!(fold(folded), folded, "{path}");
        }
    }

    #[test]
    fn routes_differ_by_method_and_path_alone() {
        let route = |method, path| RouteHash::of(&KeySeed([7; 16]), method, path);
        assert_eq!(route("GET", "/user/1?x=1"), route("GET", "/user/22?x=5"));
        assert_ne!(route("GET", "/user/1"), route("POST", "/user/1"));
        assert_ne!(route("GET", "/user/1"), route("GET", "/users/1"));
    }
}
