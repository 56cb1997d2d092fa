//! Restores buckets from a snapshot, which is first checked as a whole.
//!
//! The buckets of a limit are restored into the current limit with the same door, name, key and
//! unit, if its numbers allow it. Other buckets are dropped. The counters of the rate limit service
//! are restored by their keys, which include their windows. If the clock was set back since, debts
//! of seconds would seem to last for hours: in that case debts count from now. A damaged snapshot
//! is moved aside, and no part of it is used.

use super::format::{
    self, SnapshotAlgorithm, SnapshotHead, SnapshotLimit, SnapshotReadError, SnapshotRecord,
};
use super::{SnapshotTables, disk, kept, kept_clients, kept_windows};
use evenkeel_config::settings;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::queue::ClientHistory;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_core::windows::WindowCounters;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::StateCounts;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;
use std::sync::Arc;

/// The size of the read buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 18;
/// The difference by which the clock may seem to have gone back without being considered set back.
const CLOCK_SKEW_MAX: Nanos = Nanos::from_secs(1);

/// A snapshot that has been checked.
pub struct CheckedSnapshot {
    file: File,
    head: SnapshotHead,
}

/// Opens and checks the snapshot of an earlier run. A damaged one is logged and moved aside.
#[must_use]
pub fn find(settings: &settings::StateSettings) -> Option<CheckedSnapshot> {
    let path = settings.file.as_deref()?;
    let file = match disk::open(path) {
        Ok(Some(file)) => file,
        Ok(None) => {
            let file = path.display();
            tracing::info!(
                target: "evenkeel::state", %file,
                "no snapshot exists yet: all clients start without debt"
            );
            return None;
        }
        Err(error) => return refuse(path, &error),
    };
    match format::read(BufReader::with_capacity(BUFFER_BYTES, &file), |_| {}) {
        Ok(head) => Some(CheckedSnapshot { file, head }),
        Err(fault) => refuse(path, &fault),
    }
}

fn refuse(path: &Path, why: &dyn Display) -> Option<CheckedSnapshot> {
    let aside = match disk::set_aside(path) {
        Ok(place) => format!("the file was moved to {}", place.display()),
        Err(error) => format!("the file could not be moved aside: {error}"),
    };
    tracing::error!(
        target: "evenkeel::state", file = %path.display(),
        "the snapshot is refused, and all clients start without debt: {why}; {aside}"
    );
    None
}

impl CheckedSnapshot {
    /// The seed with which the keys were hashed. The engines must use the same one, or no key is
    /// found again.
    #[must_use]
    pub fn seed(&self) -> KeySeed {
        self.head.seed
    }

    /// Restores the buckets of all limits that still mean the same. Call it before the first
    /// request.
    pub fn restore(mut self, accounts: &SnapshotTables, watch: &Watch, now: Time) {
        let mut restorer = SnapshotRestorer::new(accounts, &self.head, now);
        if let Err(fault) = self.show(|seen| restorer.see(seen)) {
            tracing::error!(
                target: "evenkeel::state",
                "the snapshot could be read only in part; the rest of its debts is lost: {fault}"
            );
        }
        let SnapshotRestorer { restored, clients, left, .. } = restorer;
        StateCounts::new(watch.registry()).record_restored(restored);
        if restorer.back > CLOCK_SKEW_MAX {
            tracing::warn!(
                target: "evenkeel::state", seconds = restorer.back.as_secs_f64(),
                "the snapshot is dated in the future, so the clock was set back: debts count from \
                 now on"
            );
        }
        let age = now.since(self.head.written).as_secs_f64();
        tracing::info!(
            target: "evenkeel::state", restored, clients, left, age, "snapshot restored"
        );
    }

    fn show(
        &mut self,
        see: impl FnMut(SnapshotRecord<'_>),
    ) -> Result<SnapshotHead, SnapshotReadError> {
        self.file.rewind()?;
        format::read(BufReader::with_capacity(BUFFER_BYTES, &self.file), see)
    }
}

/// The state of a restoration.
struct SnapshotRestorer<'a> {
    accounts: &'a SnapshotTables,
    now: Time,
    /// The time by which the clock was set back since.
    back: Nanos,
    /// The table for the buckets of the current limit; `None` if they are dropped.
    place: Option<RestoreTarget>,
    restored: u64,
    /// The number of clients that the queue knows again.
    clients: u64,
    /// The number of buckets that were dropped, because their debt is paid or their limit is gone,
    /// and of clients.
    left: u64,
}

/// The table that buckets are restored into.
enum RestoreTarget {
    /// The limit at this index, and the algorithm by which the buckets were counted.
    Limit(Arc<Limiter>, usize, Algorithm),
    Windows(Arc<WindowCounters>),
    Clients(ClientHistory),
}

impl<'a> SnapshotRestorer<'a> {
    fn new(accounts: &'a SnapshotTables, head: &SnapshotHead, now: Time) -> SnapshotRestorer<'a> {
        let back = head.written.since(now);
        SnapshotRestorer { accounts, now, back, place: None, restored: 0, clients: 0, left: 0 }
    }

    fn see(&mut self, seen: SnapshotRecord<'_>) {
        match seen {
            SnapshotRecord::Limit(was) => self.place = self.find(was),
            SnapshotRecord::Bucket(hash, state) if self.put(hash, state) => match self.place {
                Some(RestoreTarget::Clients(_)) => self.clients += 1,
                _ => self.restored += 1,
            },
            SnapshotRecord::Bucket(..) => self.left += 1,
        }
    }

    /// The current limit that means the same.
    fn find(&self, was: &SnapshotLimit) -> Option<RestoreTarget> {
        let counted = match &was.counting {
            SnapshotAlgorithm::Bucket(counted) => counted,
            SnapshotAlgorithm::Windows => return self.windows(was).map(RestoreTarget::Windows),
            SnapshotAlgorithm::Clients => return self.clients(was).map(RestoreTarget::Clients),
        };
        for (door, engine) in self.accounts.engines.iter().filter(|(door, _)| *door == was.door) {
            let same = |today: &SnapshotLimit| {
                let SnapshotAlgorithm::Bucket(counts) = &today.counting else { return false };
                (&today.name, &today.by, today.unit) == (&was.name, &was.by, was.unit)
                    && counts.can_continue(counted)
            };
            let limiter = engine.held();
            let index = limiter.limits().iter().position(|limit| same(&kept(door, limit)));
            if let Some(index) = index {
                return Some(RestoreTarget::Limit(limiter, index, counted.clone()));
            }
        }
        None
    }

    fn windows(&self, was: &SnapshotLimit) -> Option<Arc<WindowCounters>> {
        let (door, windows) = self.accounts.windows.as_ref()?;
        (*was == kept_windows(door)).then(|| Arc::clone(windows))
    }

    fn clients(&self, was: &SnapshotLimit) -> Option<ClientHistory> {
        let mut histories = self.accounts.histories();
        histories.find_map(|(door, history)| (*was == kept_clients(door)).then_some(history))
    }

    fn put(&self, hash: KeyHash, state: &[u64]) -> bool {
        let (limiter, index, was) = match &self.place {
            None => return false,
            // Windows begin and end by the system's clock. If it was set back, the stored ones do
            // not apply.
            Some(RestoreTarget::Windows(windows)) => {
                return self.back <= CLOCK_SKEW_MAX && windows.restore(hash, state[0], self.now);
            }
            Some(RestoreTarget::Clients(history)) => {
                return history.restore(hash, state, self.back, self.now);
            }
            Some(RestoreTarget::Limit(limiter, index, was)) => (limiter, index, was),
        };
        if self.back <= CLOCK_SKEW_MAX {
            return limiter.restore(*index, was, hash, state, self.now);
        }
        // If a debt is left, the state is a single time, which can be moved. Otherwise it may be
        // more than that.
        if was.missing(state, self.now).is_none() {
            return false;
        }
        let state = [Time(state[0]).minus(self.back).0];
        limiter.restore(*index, was, hash, &state, self.now)
    }
}
