//! The clients that instances which count together share with each other.
//!
//! An instance sends each client that it has served at least twice, and not only under pressure:
//! what a swarm got from one instance makes it no regular of another. The receiver keeps the
//! earliest proof, the largest number and the latest stamp, so neither order nor repetition
//! matters. Records have ages instead of times, because clocks differ. A stamp in a record is never
//! in the future, so no record makes a regular a stranger. What is only known from others is not
//! sent again, and displaces no client that was served here twice.

use super::entry::{FORGOTTEN_AFTER, HISTORY_SERVED_MIN, KnownClient, STAMP_REACH, Sharing};
use super::history::ClientHistory;
use crate::key::KeyHash;
use crate::units::{Nanos, SECOND, Time};

/// The lowest bits of a record are the number of served requests above [`HISTORY_SERVED_MIN`].
const SERVED_BITS: u32 = 3;
const SERVED_MAX: u64 = (1 << SERVED_BITS) - 1;
/// Then comes the age of the stamp in seconds. The others are the age of the proof in seconds.
const STAMP_BITS: u32 = 17;
const STAMP_AGE_MAX: u64 = (1 << STAMP_BITS) - 1;

const _: () = {
    let forgotten = FORGOTTEN_AFTER.0 + STAMP_REACH.0;
    assert!(forgotten <= STAMP_AGE_MAX * SECOND, "a stamp of this age means nothing");
    assert!(super::CALM_SERVED_MIN <= HISTORY_SERVED_MIN + SERVED_MAX, "the number suffices");
};

/// A client that is sent to other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedClient(KnownClient);

impl SharedClient {
    /// The client as a number that means the same by another clock, if it arrives at once. Ages
    /// are rounded down, so a proof never becomes older than it is.
    #[must_use]
    pub fn record(self, now: Time) -> u64 {
        let SharedClient(KnownClient { since, stamp, served, .. }) = self;
        let since_age = now.since(since).0 / SECOND;
        let stamp_age = (now.since(stamp).0 / SECOND).min(STAMP_AGE_MAX);
        let more = served.saturating_sub(HISTORY_SERVED_MIN).min(SERVED_MAX);
        since_age << (STAMP_BITS + SERVED_BITS) | stamp_age << SERVED_BITS | more
    }

    /// How much it matters that others know of the client: the number of served requests counts
    /// first, then the stamp.
    #[must_use]
    pub fn rank(self) -> (u32, Time) {
        (self.0.served.max(1).ilog2().min(SERVED_BITS), self.0.stamp)
    }
}

impl KnownClient {
    fn is_shared(self, now: Time) -> bool {
        self.served >= HISTORY_SERVED_MIN
            && self.sharing != Sharing::Withheld
            && !self.is_forgotten(now)
    }

    /// A client as told by another instance. Every number is a record.
    fn heard(record: u64, now: Time) -> KnownClient {
        let age = |seconds| now.minus(Nanos::from_secs(seconds));
        KnownClient {
            since: age(record >> (STAMP_BITS + SERVED_BITS)),
            stamp: age(record >> SERVED_BITS & STAMP_AGE_MAX),
            served: HISTORY_SERVED_MIN + (record & SERVED_MAX),
            sharing: Sharing::Foreign,
        }
    }

    /// The client with what another instance has told.
    fn joined(self, heard: KnownClient) -> KnownClient {
        let proof = |known: KnownClient| {
            (known.served < HISTORY_SERVED_MIN, known.since, known.sharing == Sharing::Withheld)
        };
        let is_news = proof(heard) < proof(self);
        KnownClient {
            since: if is_news { heard.since } else { self.since },
            stamp: self.stamp.max(heard.stamp),
            served: self.served.max(heard.served),
            sharing: match self.sharing {
                Sharing::Withheld if is_news => Sharing::Done,
                sharing => sharing,
            },
        }
    }
}

impl ClientHistory {
    /// Calls `f` with each client that was served here since the last call, and of which others are
    /// told.
    pub fn take_due(&self, now: Time, mut f: impl FnMut(KeyHash, SharedClient)) {
        let is_due = |known: KnownClient| known.sharing == Sharing::Due && known.is_shared(now);
        let take = |state: &mut [u64]| {
            let known = KnownClient::of(state);
            is_due(known).then(|| KnownClient { sharing: Sharing::Done, ..known }.write(state))?;
            Some(SharedClient(known))
        };
        self.table.for_each(|key, state| {
            if is_due(KnownClient::of(state))
                && let Some(client) = self.table.take(key).change(take, |_| 0)
            {
                f(key, client);
            }
        });
    }

    /// Calls `f` with each client that is reported to an instance that joins, including those that
    /// were only served elsewhere.
    pub fn for_each_shared(&self, now: Time, mut f: impl FnMut(KeyHash, SharedClient)) {
        self.table.for_each(|key, state| {
            let known = KnownClient::of(state);
            if known.is_shared(now) {
                f(key, SharedClient(known));
            }
        });
    }

    /// Adds the record of a client from another instance. Returns false if the client is forgotten
    /// by now, or if there is no room. A key is found again only under the seed that it was hashed
    /// with.
    pub fn learn(&self, key: KeyHash, record: u64, now: Time) -> bool {
        let heard = KnownClient::heard(record, now);
        if heard.is_forgotten(now) {
            return false;
        }
        let mut entry = self.table.take(key);
        let known = entry.with(KnownClient::of);
        let is_new = known.served == 0 || known.is_forgotten(now);
        let mut state = [0; ClientHistory::WORDS];
        let joined = if is_new { heard } else { known.joined(heard) };
        joined.write(&mut state);
        entry.offer(&state, |state| KnownClient::worth(state, now))
    }
}

#[cfg(test)]
mod tests;
