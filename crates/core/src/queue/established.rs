//! Recognises established clients: those that came first some minutes ago and have sent several
//! requests.
//!
//! A client that comes once, or a few times an hour, is new; thousands of these may be one swarm.
//! Clients are stored in the same way as buckets: a hash and two words in fixed memory, with no
//! list and no background sweep. New clients are evicted before established ones, so a flood of new
//! names displaces no established client. The queue decides how new clients are treated. Why:
//! docs/adr/0006.

use crate::key::KeyHash;
use crate::table::BucketTable;
use crate::units::{Nanos, Time};

/// The time after its first request from which on a client can be established.
pub const ESTABLISHED_AFTER: Nanos = Nanos::from_secs(120);
/// The number of requests that makes a client established. Requests of [`REQUEST_HALF_LIFE`] ago
/// count half.
pub const ESTABLISHED_REQUESTS_MIN: u64 = 8;
/// The time after which a request counts half.
pub const REQUEST_HALF_LIFE: Nanos = Nanos::from_secs(600);
/// A client that has sent no request for this long is new again.
pub const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(86_400);
/// The weight of one request in the stored count: 16 bits are for the fraction.
const REQUEST_WEIGHT: u64 = 1 << 16;
/// The upper bound of a stored count, which has 24 bits.
const REQUEST_COUNT_MAX: u64 = 64 * REQUEST_WEIGHT;

const _: () = {
    assert!(REQUEST_COUNT_MAX < 1 << 24, "a count has 24 bits");
    assert!(ESTABLISHED_REQUESTS_MIN * REQUEST_WEIGHT <= REQUEST_COUNT_MAX, "it can be reached");
    assert!(ESTABLISHED_AFTER.0 < FORGOTTEN_AFTER.0);
};

/// The clients that have sent requests recently.
pub(super) struct EstablishedClients {
    table: BucketTable,
}

impl EstablishedClients {
    /// Remembers `keys_max` clients, at 36 bytes each. Too few: a client that comes seldom is new
    /// again at its next visit.
    #[must_use]
    pub fn new(keys_max: usize) -> EstablishedClients {
        EstablishedClients { table: BucketTable::new(keys_max, 2) }
    }

    /// Counts a request of `client`. Returns whether the client is established.
    pub fn handle_request(&self, client: KeyHash, now: Time) -> bool {
        let mut entry = self.table.take(client);
        let worth = |state: &[u64]| worth(state, now);
        entry.change(
            |state| {
                let (first, last, count) = unpacked(state);
                let first =
                    if state[1] == 0 || now.since(last) >= FORGOTTEN_AFTER { now } else { first };
                let count = (faded(count, now.since(last)) + REQUEST_WEIGHT).min(REQUEST_COUNT_MAX);
                (state[0], state[1]) = (first.0, packed(now, count));
                is_known(first, count, now)
            },
            worth,
        )
    }
}

/// The second word of an entry: the second of the last request in the upper 40 bits, and the count
/// in the lower 24. The first word is the time of the first request.
fn packed(last: Time, count: u64) -> u64 {
    last.second() << 24 | count
}

fn unpacked(state: &[u64]) -> (Time, Time, u64) {
    let last = Time::ZERO.plus(Nanos::from_secs(state[1] >> 24));
    (Time(state[0]), last, state[1] & ((1 << 24) - 1))
}

fn is_known(first: Time, count: u64, now: Time) -> bool {
    now.since(first) >= ESTABLISHED_AFTER && count >= ESTABLISHED_REQUESTS_MIN * REQUEST_WEIGHT
}

/// Halves a count every [`REQUEST_HALF_LIFE`], linearly in between.
fn faded(count: u64, age: Nanos) -> u64 {
    let halvings = (age.0 / REQUEST_HALF_LIFE.0).min(63);
    let count = count >> halvings;
    count - count * (age.0 % REQUEST_HALF_LIFE.0 / 1_000) / (REQUEST_HALF_LIFE.0 / 500)
}

/// The worth of an entry for eviction: established clients are worth more than all new ones, then
/// later requests more than earlier ones.
fn worth(state: &[u64], now: Time) -> u64 {
    let (first, last, count) = unpacked(state);
    if now.since(last) >= FORGOTTEN_AFTER {
        return 0;
    }
    u64::from(is_known(first, count, last)) << 40 | last.second()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(Nanos::from_secs(1_700_000_000 + seconds).0)
    }

    fn client(n: u64) -> KeyHash {
        KeyHash::from_bits(n + 1)
    }

    #[test]
    fn it_takes_some_minutes_and_some_requests() {
        let known = EstablishedClients::new(100);
        assert!((0..119).all(|second| !known.handle_request(client(1), at(second))));
        assert!(known.handle_request(client(1), at(120)));
        assert!(!known.handle_request(client(2), at(120)));
        // Five requests an hour, for a day.
        assert!((0..120).all(|n| !known.handle_request(client(3), at(720 * n))));
    }

    #[test]
    fn a_flood_of_strangers_makes_nobody_forgotten() {
        let known = EstablishedClients::new(100);
        (0..130).for_each(|second| _ = known.handle_request(client(1), at(second)));
        (0..10_000).for_each(|n| _ = known.handle_request(client(10 + n), at(200)));
        assert!(known.handle_request(client(1), at(300)));
        let later = FORGOTTEN_AFTER.plus(Nanos::from_secs(400));
        assert!(!known.handle_request(client(1), at(0).plus(later)));
    }
}
