//! Debts that outlive the process: a snapshot of all buckets and counters. A thread writes one
//! every few seconds and once more at the end, and the next start restores it (`restore`).
//!
//! A bucket is a few numbers, with times that count from the Unix epoch. So a restored bucket needs
//! no conversion and has been refilled for the time in between. Buckets without debt are not
//! written. The thread copies a table set by set, so a request waits for it no longer than for
//! another request.
//!
//! Problems with the file never cost a request. A damaged file is moved aside, and the process
//! starts with empty buckets. If writing fails, the error is logged and counted, and writing is
//! tried again. The names of clients are not stored. The format: `format`. The file: `disk`.

mod disk;
pub mod format;
mod restore;

pub use restore::{Found, find};

use evenkeel_config::settings;
use evenkeel_core::key::Seed;
use evenkeel_core::limit::{Limit, Part, Unit};
use evenkeel_core::units::Time;
use evenkeel_core::windows::Windows;
use evenkeel_engine::counted::Counted;
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::Thread;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::StateCounts;
use evenkeel_telemetry::sampler::Seldom;
use format::{Counting, Head, Kept, Writer};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// The name of a door, and its engine.
pub type DoorEngine = (&'static str, Arc<dyn Counted>);

/// The tables to write and restore, each with the name of its door.
#[derive(Clone, Default)]
pub struct Accounts {
    /// The engines with limits and their buckets.
    pub engines: Vec<DoorEngine>,
    /// The counters of windows of the rate limit service.
    pub windows: Option<(&'static str, Arc<Windows>)>,
}

/// The thread that writes snapshots. When this is dropped, it writes one more and ends.
pub type Running = Thread<SyncSender<()>>;

/// Starts to write snapshots of `accounts`, which hash their keys with `seed`. Returns `None` if no
/// file is configured.
///
/// # Errors
/// The system gives no thread.
pub fn start(
    settings: &settings::State,
    seed: Seed,
    accounts: Accounts,
    watch: &Watch,
    clock: Clock,
) -> io::Result<Option<Running>> {
    let Some(path) = settings.file.clone() else { return Ok(None) };
    let counts = StateCounts::new(watch.registry());
    let scribe = Scribe { path, seed, accounts, counts, clock, complaints: Seldom::default() };
    let (stop, stopped) = sync_channel(1);
    let every = settings.every;
    Thread::start("state", stop, move || scribe.work(every, &stopped)).map(Some)
}

/// The state of the writing thread.
struct Scribe {
    path: PathBuf,
    seed: Seed,
    accounts: Accounts,
    counts: StateCounts,
    clock: Clock,
    complaints: Seldom,
}

impl Scribe {
    /// Writes snapshots until it is stopped, and then one more.
    fn work(&self, every: Duration, stopped: &Receiver<()>) {
        let mut failing = false;
        let mut took = Duration::ZERO;
        loop {
            let last = stopped.recv_timeout(pause(every, took)) != Err(RecvTimeoutError::Timeout);
            let before = self.clock.now();
            failing = self.write(before, failing);
            took = Duration::from_nanos(self.clock.now().since(before).0);
            self.counts.took(took);
            if last {
                return;
            }
        }
    }

    /// Writes one snapshot. Returns whether that failed.
    fn write(&self, now: Time, failed_before: bool) -> bool {
        let mut keys = 0;
        match disk::replace(&self.path, |file| self.fill(file, now, &mut keys)) {
            Ok(bytes) => {
                self.counts.written(now, keys, bytes);
                if failed_before {
                    tracing::info!(target: "evenkeel::state", "snapshots can be written again");
                }
                false
            }
            Err(error) => {
                self.counts.failed.increment(1);
                if self.complaints.ask(now) {
                    tracing::error!(
                        target: "evenkeel::state", file = %self.path.display(), %error,
                        "the snapshot cannot be written; if the program ends now, the next one \
                         knows the debts of the last good snapshot only"
                    );
                }
                true
            }
        }
    }

    fn fill<W: Write>(
        &self,
        file: BufWriter<W>,
        now: Time,
        keys: &mut u64,
    ) -> io::Result<BufWriter<W>> {
        // The limits are read once, because the head states their number and a reload may change
        // it.
        let held: Vec<_> =
            self.accounts.engines.iter().map(|(door, engine)| (door, engine.held())).collect();
        let limits = held.iter().map(|(_, held)| held.limits().len()).sum::<usize>();
        let limits = limits + usize::from(self.accounts.windows.is_some());
        let limits = u16::try_from(limits).map_err(io::Error::other)?;
        let mut writer = Writer::begin(file, Head { seed: self.seed, written: now, limits })?;
        for (door, held) in &held {
            for (limit, table) in held.limits().iter().zip(held.tables()) {
                writer.limit(&kept(door, limit))?;
                let mut result = Ok(());
                table.for_each(|hash, state| {
                    if result.is_ok() && limit.algorithm.worth(state, now) > 0 {
                        *keys += 1;
                        result = writer.bucket(hash, state);
                    }
                });
                result?;
                writer.end_limit()?;
            }
        }
        if let Some((door, windows)) = &self.accounts.windows {
            self.fill_windows(&mut writer, door, windows, now, keys)?;
        }
        writer.finish()
    }

    /// Writes the counters of windows. They follow the system's clock, so steps of the clock since
    /// the start are added.
    fn fill_windows<W: Write>(
        &self,
        writer: &mut Writer<BufWriter<W>>,
        door: &str,
        windows: &Windows,
        now: Time,
        keys: &mut u64,
    ) -> io::Result<()> {
        writer.limit(&kept_windows(door))?;
        let mut result = Ok(());
        windows.for_each(Time(now.0.saturating_add_signed(self.clock.step())), |key, word| {
            if result.is_ok() {
                *keys += 1;
                result = writer.bucket(key, &[word]);
            }
        });
        result?;
        writer.end_limit()
    }
}

/// The pause before the next snapshot, if the last one took `took`. A crash loses the time since
/// the start of the last complete snapshot. To keep that below `every`, each snapshot starts
/// earlier by the time that two of them take. If the disk is too slow for that, it still rests for
/// half of `every`.
fn pause(every: Duration, took: Duration) -> Duration {
    every.saturating_sub(took.saturating_mul(2)).max(every / 2)
}

/// The description of a limit in a snapshot.
fn kept(door: &str, limit: &Limit) -> Kept {
    let by: Vec<String> = limit.by.iter().map(text).collect();
    Kept {
        door: door.to_owned(),
        name: limit.name.to_string(),
        by: by.join(","),
        unit: limit.unit,
        counting: Counting::Bucket(limit.algorithm.clone()),
    }
}

/// The description of all windows in a snapshot. The properties of each counter are part of its
/// key.
fn kept_windows(door: &str) -> Kept {
    let (name, by) = ("windows".to_owned(), String::new());
    Kept { door: door.to_owned(), name, by, unit: Unit::Hits, counting: Counting::Windows }
}

/// A part of a key as text, in a form that means the same in every version.
fn text(part: &Part) -> String {
    match part {
        Part::Ip { v4, v6 } => format!("ip/{v4}/{v6}"),
        Part::UserAgent => "user-agent".to_owned(),
        Part::Header(name) => format!("header:{name}"),
        Part::Cookie(name) => format!("cookie:{name}"),
        Part::Method => "method".to_owned(),
        Part::Path(None) => "path".to_owned(),
        Part::Path(Some(segments)) => format!("path:{segments}"),
        Part::Vhost => "vhost".to_owned(),
        Part::Host => "host".to_owned(),
        Part::All => "all".to_owned(),
        Part::Tag => "tag".to_owned(),
    }
}

#[cfg(test)]
mod tests;
