//! Divides the remaining requests of a limit among the buckets that share it.
//!
//! The division is max-min fair by demand over the whole window. A bucket that needs less than an
//! equal share gets what it needs, the others divide the rest equally, and a surplus is spread over
//! all. At any moment the shares together are at most what remains: shares that are too large are
//! taken back before others grow. Requests that a bucket has probably let pass but not reported
//! count as used. All functions here are pure; `state` keeps the state.

/// The claim of one bucket on a shared limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareClaim {
    /// The number of requests that it may still let pass, as far as reported.
    pub held: u64,
    /// The number of requests that it let pass in this window, as far as reported.
    pub used: u64,
    /// The part of `held` that it has probably used since its last report.
    pub unreported: u64,
    /// The expected number of requests in the rest of the window; `None` if it is not known yet.
    pub demand: Option<u64>,
    /// Whether it has just reported, or a window has begun, so that it can get its share now.
    pub due: bool,
    /// Whether it refuses requests because its share is used up.
    pub hungry: bool,
}

impl ShareClaim {
    /// The number of requests of this window that it used, reported or not.
    fn used_total(&self) -> u64 {
        self.used + self.unreported
    }

    /// Its total demand in this window, at least `least`.
    fn wants(&self, least: u64) -> u64 {
        self.demand.map_or(u64::MAX, |demand| demand.saturating_add(self.used_total()).max(least))
    }

    /// Its total share of this window if no bucket gets more than `level`.
    fn part(&self, least: u64, level: u64) -> u64 {
        self.wants(least).min(level).max(self.used_total())
    }
}

/// A bucket without demand keeps one part in this many of an equal share, so that its next request
/// can pass.
const IDLE_SHARE_DIVISOR: u64 = 4;

/// The number of requests that each bucket may let pass in addition to those it used. The sum is
/// `left`.
pub fn parts(left: u64, claims: &[ShareClaim]) -> Vec<u64> {
    let count = claims.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let total = left + claims.iter().map(ShareClaim::used_total).sum::<u64>();
    let least = total / (IDLE_SHARE_DIVISOR * count);
    let sum = |level| claims.iter().map(|claim| claim.part(least, level)).sum::<u64>();
    let level = highest(total, |level| sum(level) <= total);
    let mut parts: Vec<u64> =
        claims.iter().map(|claim| claim.part(least, level) - claim.used_total()).collect();
    // A surplus goes to all, and an indivisible remainder to the buckets with the largest unmet
    // demand.
    let rest = total - sum(level);
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let missing =
        |at: &usize| claims[*at].wants(least).saturating_sub(level.max(claims[*at].used_total()));
    order.sort_by_key(|at| std::cmp::Reverse(missing(at)));
    for (place, at) in order.into_iter().enumerate() {
        parts[at] += rest / count + u64::from((place as u64) < rest % count);
    }
    parts
}

/// The highest number up to `max` for which `good` holds. `good` must hold for zero and for every
/// number below a good one.
fn highest(max: u64, good: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = high - (high - low) / 2;
        if good(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// The new share of each bucket; `None` if it keeps `held`. The new shares and the kept ones
/// together are at most `total`, unless the buckets have already used more.
pub fn balance(total: u64, claims: &[ShareClaim]) -> Vec<Option<u64>> {
    let unreported: u64 = claims.iter().map(|claim| claim.unreported).sum();
    let parts = parts(total.saturating_sub(unreported), claims);
    let mut given: Vec<Option<u64>> = vec![None; claims.len()];
    let mut held: u64 = claims.iter().map(|claim| claim.held).sum();
    // A share up to a tenth too large is not worth a message, unless other buckets lack that part.
    for strict in [false, true] {
        for (at, claim) in claims.iter().enumerate() {
            let due = parts[at] + claim.unreported;
            let slack = if strict { 0 } else { 1 + due / 10 };
            let needed = !strict || held > total;
            if given[at].is_none() && needed && claim.held > due + slack {
                given[at] = Some(parts[at]);
                held -= claim.held - due;
            }
        }
    }
    let mut grow = |at: usize, claim: &ShareClaim| {
        let own = given[at].map_or(claim.held, |part| part + claim.unreported);
        let room = total.saturating_sub(held - own).saturating_sub(claim.unreported);
        let part = parts[at].min(room);
        if claim.due || part + claim.unreported > own + own / 10 {
            given[at] = Some(part);
            held = held - own + part + claim.unreported;
        }
    };
    let all = || claims.iter().enumerate();
    all().filter(|(_, claim)| claim.due).for_each(|(at, claim)| grow(at, claim));
    let wanting = |claim: &ShareClaim| !claim.due && (claim.hungry || claim.held == 0);
    all().filter(|(_, claim)| wanting(claim)).for_each(|(at, claim)| grow(at, claim));
    given
}
