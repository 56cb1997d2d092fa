//! The clients that a queue remembers, for snapshots and for other instances.
//!
//! A handle on the table of `known_clients`. It takes no lock of the queue, so a look through all
//! clients delays no request. Which of them instances share: `shared`.

use super::entry::{HISTORY_SERVED_MIN, KnownClient, STAMP_REACH};
use crate::key::KeyHash;
use crate::table::BucketTable;
use crate::units::{Nanos, Time};
use alloc::sync::Arc;

/// A client that was served at least twice, and was here before the pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturningClient {
    /// The number of its requests that were served.
    pub served: u64,
    /// The time since it was served for the second time.
    pub known_for: Nanos,
}

/// The clients that a queue remembers.
#[derive(Clone)]
pub struct ClientHistory {
    pub(super) table: Arc<BucketTable>,
}

impl ClientHistory {
    /// The number of words in the state of a client.
    pub const WORDS: usize = 2;

    /// A client, if it is a returning one: it was served at least twice, and before `pressure`
    /// began, if there is any.
    #[must_use]
    pub fn returning(
        &self,
        key: KeyHash,
        pressure: Option<Time>,
        now: Time,
    ) -> Option<ReturningClient> {
        let known = self.table.take(key).with(KnownClient::of);
        let is_returning = known.served >= HISTORY_SERVED_MIN && !known.is_forgotten(now);
        let was_here = pressure.is_none_or(|began| known.since < began);
        let (served, known_for) = (known.served, now.since(known.since));
        (is_returning && was_here).then_some(ReturningClient { served, known_for })
    }

    /// Calls `f` with the key and the state of each client that is worth keeping: those that were
    /// served at least twice, and those that were served in the last ten minutes, so that a ticket
    /// that was used stays used.
    pub fn for_each(&self, now: Time, mut f: impl FnMut(KeyHash, [u64; ClientHistory::WORDS])) {
        self.table.for_each(|key, state| {
            let known = KnownClient::of(state);
            let is_recent = now.since(known.stamp) < STAMP_REACH;
            if (known.served >= HISTORY_SERVED_MIN || is_recent) && !known.is_forgotten(now) {
                f(key, [state[0], state[1]]);
            }
        });
    }

    /// Restores a client from a snapshot with times that are `ahead` of the clock. Returns false if
    /// the client is forgotten by now, or if the state cannot be one. A key is found again only
    /// under the seed that it was hashed with.
    #[must_use]
    pub fn restore(&self, key: KeyHash, state: &[u64], ahead: Nanos, now: Time) -> bool {
        let &[_, _] = state else { return false };
        let was = KnownClient::of(state);
        let (since, stamp) = (was.since.minus(ahead), was.stamp.minus(ahead));
        let was = KnownClient { since, stamp: stamp.min(now.plus(STAMP_REACH)), ..was };
        if was.served == 0 || was.since > now || was.is_forgotten(now) {
            return false;
        }
        let worth = |state: &[u64]| KnownClient::worth(state, now);
        self.table.take(key).change(|state| was.write(state), worth);
        true
    }
}
