//! From a snapshot back to buckets: looked at whole first, and only then taken over.
//!
//! A limit takes over the buckets of the one with its door, name, key and unit, if its numbers let
//! it; other limits' buckets are left. The rate limit service takes over its counters: what they
//! count is part of their keys. A clock that was set back since would make debts of hours
//! out of seconds: then they count from now. What is not whole is put aside; nothing of it is used.

use super::format::{self, Counting, Fault, Head, Kept, Seen};
use super::{Accounts, disk, kept, kept_windows};
use crate::config::settings;
use crate::watch::Watch;
use crate::watch::counts::StateCounts;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::key::{KeyHash, Seed};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_core::windows::Windows;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;
use std::sync::Arc;

/// Collected of the file before it is looked at.
const BUFFER_BYTES: usize = 1 << 18;
/// How far the clock may seem to have gone back without anything being wrong.
const SKEW: Nanos = Nanos::from_secs(1);

/// A snapshot that is whole.
pub struct Found {
    file: File,
    head: Head,
}

/// Looks for the snapshot of an earlier run. One that is not whole is put aside, and told.
#[must_use]
pub fn find(settings: &settings::State) -> Option<Found> {
    let path = settings.file.as_deref()?;
    let file = match disk::open(path) {
        Ok(Some(file)) => file,
        Ok(None) => {
            let file = path.display();
            tracing::info!(
                target: "evenkeel::state", %file,
                "there is no snapshot yet: nobody owes anything"
            );
            return None;
        }
        Err(error) => return refuse(path, &error),
    };
    match format::read(BufReader::with_capacity(BUFFER_BYTES, &file), |_| {}) {
        Ok(head) => Some(Found { file, head }),
        Err(fault) => refuse(path, &fault),
    }
}

fn refuse(path: &Path, why: &dyn Display) -> Option<Found> {
    let aside = match disk::set_aside(path) {
        Ok(place) => format!("it lies in {} now", place.display()),
        Err(error) => format!("it could not be put aside: {error}"),
    };
    tracing::error!(
        target: "evenkeel::state", file = %path.display(),
        "the snapshot is refused, and nobody owes anything: {why}; {aside}"
    );
    None
}

impl Found {
    /// What its keys were hashed with: under another seed none of them is found again.
    #[must_use]
    pub fn seed(&self) -> Seed {
        self.head.seed
    }

    /// Puts the buckets back whose limits still mean the same. To be done before any request comes.
    pub fn restore(mut self, accounts: &Accounts, watch: &Watch, now: Time) {
        let mut restorer = Restorer::new(accounts, &self.head, now);
        if let Err(fault) = self.show(|seen| restorer.see(seen)) {
            tracing::error!(
                target: "evenkeel::state",
                "the snapshot cannot be read any more, and is taken over in part: {fault}"
            );
        }
        let (restored, left) = (restorer.restored, restorer.left);
        StateCounts::new(watch.registry()).restored(restored);
        if restorer.back > SKEW {
            tracing::warn!(
                target: "evenkeel::state", seconds = restorer.back.as_secs_f64(),
                "the snapshot is of the future, so the clock was set back: debts count from now"
            );
        }
        let age = now.since(self.head.written).as_secs_f64();
        tracing::info!(target: "evenkeel::state", restored, left, age, "snapshot taken over");
    }

    fn show(&mut self, see: impl FnMut(Seen<'_>)) -> Result<Head, Fault> {
        self.file.rewind()?;
        format::read(BufReader::with_capacity(BUFFER_BYTES, &self.file), see)
    }
}

/// Puts buckets back, one after the other.
struct Restorer<'a> {
    accounts: &'a Accounts,
    now: Time,
    /// How far the clock was set back since.
    back: Nanos,
    /// Where the buckets of the present limit go.
    place: Option<Place>,
    restored: u64,
    /// Buckets that owe nothing any more, or whose limit is gone.
    left: u64,
}

/// Where buckets go.
enum Place {
    /// To a limit, and how they were counted.
    Limit(Arc<Limiter>, usize, Algorithm),
    Windows(Arc<Windows>),
}

impl<'a> Restorer<'a> {
    fn new(accounts: &'a Accounts, head: &Head, now: Time) -> Restorer<'a> {
        let back = head.written.since(now);
        Restorer { accounts, now, back, place: None, restored: 0, left: 0 }
    }

    fn see(&mut self, seen: Seen<'_>) {
        match seen {
            Seen::Limit(was) => self.place = self.find(was),
            Seen::Bucket(hash, state) if self.put(hash, state) => self.restored += 1,
            Seen::Bucket(..) => self.left += 1,
        }
    }

    /// The limit of today that means the same.
    fn find(&self, was: &Kept) -> Option<Place> {
        let Counting::Bucket(counted) = &was.counting else {
            return self.windows(was).map(Place::Windows);
        };
        for (door, engine) in self.accounts.engines.iter().filter(|(door, _)| *door == was.door) {
            let same = |today: &Kept| {
                let Counting::Bucket(counts) = &today.counting else { return false };
                (&today.name, &today.by, today.unit) == (&was.name, &was.by, was.unit)
                    && counts.continues(counted)
            };
            let limiter = engine.held();
            let index = limiter.limits().iter().position(|limit| same(&kept(door, limit)));
            if let Some(index) = index {
                return Some(Place::Limit(limiter, index, counted.clone()));
            }
        }
        None
    }

    fn windows(&self, was: &Kept) -> Option<Arc<Windows>> {
        let (door, windows) = self.accounts.windows.as_ref()?;
        (*was == kept_windows(door)).then(|| Arc::clone(windows))
    }

    fn put(&self, hash: KeyHash, state: &[u64]) -> bool {
        let (limiter, index, was) = match &self.place {
            None => return false,
            // Windows stand where the system's clock has them: under another they are not these.
            Some(Place::Windows(windows)) => {
                return self.back <= SKEW && windows.restore(hash, state[0], self.now);
            }
            Some(Place::Limit(limiter, index, was)) => (limiter, index, was),
        };
        if self.back <= SKEW {
            return limiter.restore(*index, was, hash, state, self.now);
        }
        // Where something is owed, the state is one time; else not all of it is.
        if was.missing(state, self.now).is_none() {
            return false;
        }
        let state = [Time(state[0]).minus(self.back).0];
        limiter.restore(*index, was, hash, &state, self.now)
    }
}
