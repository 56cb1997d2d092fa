//! How what is left of a limit is shared out among those who may let requests pass.
//!
//! Max-min fair by demand, over the whole window: whoever wants less than an equal part gets what
//! it wants, the others share the rest equally, and what nobody wants is spread over all, so that
//! nothing lies idle. At any moment the parts together are no more than what is left: parts that
//! have become too large are taken back before others grow. What somebody has probably used and
//! not told yet counts as used. Pure functions of what is known; who holds what is kept by `book`.

/// One of those who share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// What it may still let pass, as far as it has told.
    pub held: u64,
    /// What it has let pass in this window, as far as it has told.
    pub used: u64,
    /// Of what it holds, what it has probably let pass since.
    pub unreported: u64,
    /// What it is likely to want; `None`: nobody knows yet.
    pub demand: Option<u64>,
    /// It has told what it used just now, or begins anew, and can be given what it is due.
    pub due: bool,
    /// It refuses requests for want of more.
    pub hungry: bool,
}

impl Claim {
    /// What it has had of this window.
    fn had(&self) -> u64 {
        self.used + self.unreported
    }

    /// What it wants of this window, at least `least`.
    fn wants(&self, least: u64) -> u64 {
        self.demand.map_or(u64::MAX, |demand| demand.saturating_add(self.had()).max(least))
    }

    /// What it has of this window in the end, where nobody gets more than `level`.
    fn part(&self, least: u64, level: u64) -> u64 {
        self.wants(least).min(level).max(self.had())
    }
}

/// Of an equal part, one in so many is kept for somebody who wants nothing now, so that its next
/// request finds something.
const KEPT: u64 = 4;

/// What each may let pass beside what it has; together they are `left`.
#[must_use]
pub fn parts(left: u64, claims: &[Claim]) -> Vec<u64> {
    let count = claims.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let total = left + claims.iter().map(Claim::had).sum::<u64>();
    let least = total / (KEPT * count);
    let sum = |level| claims.iter().map(|claim| claim.part(least, level)).sum::<u64>();
    let level = highest(total, |level| sum(level) <= total);
    let mut parts: Vec<u64> =
        claims.iter().map(|claim| claim.part(least, level) - claim.had()).collect();
    // What is over goes to all; what does not divide evenly, to those who want most.
    let rest = total - sum(level);
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let missing =
        |at: &usize| claims[*at].wants(least).saturating_sub(level.max(claims[*at].had()));
    order.sort_by_key(|at| std::cmp::Reverse(missing(at)));
    for (place, at) in order.into_iter().enumerate() {
        parts[at] += rest / count + u64::from((place as u64) < rest % count);
    }
    parts
}

/// The highest number up to `max` that is good, where all below a good one are, and zero is.
fn highest(max: u64, good: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = high - (high - low) / 2;
        if good(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// What each is given anew; `None`: it keeps what it holds. Together with what others hold that is
/// no more than `total`, unless they have used more than there is.
#[must_use]
pub fn balance(total: u64, claims: &[Claim]) -> Vec<Option<u64>> {
    let unreported: u64 = claims.iter().map(|claim| claim.unreported).sum();
    let parts = parts(total.saturating_sub(unreported), claims);
    let mut given: Vec<Option<u64>> = vec![None; claims.len()];
    let mut held: u64 = claims.iter().map(|claim| claim.held).sum();
    // A tenth more than due is not worth a message, unless it is missing elsewhere.
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
    let mut grow = |at: usize, claim: &Claim| {
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
    let wanting = |claim: &Claim| !claim.due && (claim.hungry || claim.held == 0);
    all().filter(|(_, claim)| wanting(claim)).for_each(|(at, claim)| grow(at, claim));
    given
}
