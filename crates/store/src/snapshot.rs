//! Debts that outlive the process: a snapshot of all buckets and counters, and of the clients that
//! the queue remembers. A thread writes one every few seconds and once more at the end, and the
//! next start restores it (`restore`).
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

pub use restore::{CheckedSnapshot, find};

use evenkeel_config::settings;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitUnit};
use evenkeel_core::queue::ClientHistory;
use evenkeel_core::units::Time;
use evenkeel_core::windows::WindowCounters;
use evenkeel_engine::view::EngineView;
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::StateCounts;
use evenkeel_telemetry::sampler::WarningThrottle;
use format::{SnapshotAlgorithm, SnapshotHead, SnapshotLimit, SnapshotWriter};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// The name of a door, and its engine.
pub type DoorEngine = (&'static str, Arc<dyn EngineView>);

/// The tables to write and restore, each with the name of its door.
#[derive(Clone, Default)]
pub struct SnapshotTables {
    /// The engines with limits and their buckets.
    pub engines: Vec<DoorEngine>,
    /// The counters of windows of the rate limit service.
    pub windows: Option<(&'static str, Arc<WindowCounters>)>,
}

impl SnapshotTables {
    /// The clients that queues remember, each with the name of its door.
    fn histories(&self) -> impl Iterator<Item = (&'static str, ClientHistory)> {
        self.engines.iter().filter_map(|(door, engine)| Some((*door, engine.client_history()?)))
    }
}

/// The thread that writes snapshots. When this is dropped, it writes one more and ends.
pub type SnapshotThread = OwnedThread<SyncSender<()>>;

/// Starts to write snapshots of `accounts`, which hash their keys with `seed`. Returns `None` if no
/// file is configured.
///
/// # Errors
/// The system gives no thread.
pub fn start(
    settings: &settings::StateSettings,
    seed: KeySeed,
    accounts: SnapshotTables,
    watch: &Watch,
    clock: Clock,
) -> io::Result<Option<SnapshotThread>> {
    let Some(path) = settings.file.clone() else { return Ok(None) };
    let counts = StateCounts::new(watch.registry());
    let scribe = SnapshotScribe {
        path,
        seed,
        accounts,
        counts,
        clock,
        complaints: WarningThrottle::default(),
    };
    let (stop, stopped) = sync_channel(1);
    let every = settings.every;
    OwnedThread::start("state", stop, move || scribe.work(every, &stopped)).map(Some)
}

/// The state of the writing thread.
struct SnapshotScribe {
    path: PathBuf,
    seed: KeySeed,
    accounts: SnapshotTables,
    counts: StateCounts,
    clock: Clock,
    complaints: WarningThrottle,
}

impl SnapshotScribe {
    /// Writes snapshots until it is stopped, and then one more.
    fn work(&self, every: Duration, stopped: &Receiver<()>) {
        let mut failing = false;
        let mut took = Duration::ZERO;
        loop {
            let last = stopped.recv_timeout(pause(every, took)) != Err(RecvTimeoutError::Timeout);
            let before = self.clock.now();
            failing = self.write(before, failing);
            took = Duration::from_nanos(self.clock.now().since(before).0);
            self.counts.record_write_time(took);
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
                self.counts.record_written(now, keys, bytes);
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
                        "the snapshot cannot be written; after a restart only the debts of the \
                         last good snapshot are known"
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
        let histories: Vec<_> = self.accounts.histories().collect();
        let limits = held.iter().map(|(_, held)| held.limits().len()).sum::<usize>();
        let limits = limits + histories.len();
        let limits = limits + usize::from(self.accounts.windows.is_some());
        let limits = u16::try_from(limits).map_err(io::Error::other)?;
        let mut writer =
            SnapshotWriter::begin(file, SnapshotHead { seed: self.seed, written: now, limits })?;
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
        for (door, history) in histories {
            fill_clients(&mut writer, door, &history, now)?;
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
        writer: &mut SnapshotWriter<BufWriter<W>>,
        door: &str,
        windows: &WindowCounters,
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

/// Writes the clients that a queue remembers.
fn fill_clients<W: Write>(
    writer: &mut SnapshotWriter<BufWriter<W>>,
    door: &str,
    history: &ClientHistory,
    now: Time,
) -> io::Result<()> {
    writer.limit(&kept_clients(door))?;
    let mut result = Ok(());
    history.for_each(now, |key, state| {
        if result.is_ok() {
            result = writer.bucket(key, &state);
        }
    });
    result?;
    writer.end_limit()
}

/// The pause before the next snapshot, if the last one took `took`. A crash loses the time since
/// the start of the last complete snapshot. To keep that below `every`, each snapshot starts
/// earlier by the time that two of them take. If the disk is too slow for that, it still rests for
/// half of `every`.
fn pause(every: Duration, took: Duration) -> Duration {
    every.saturating_sub(took.saturating_mul(2)).max(every / 2)
}

/// The description of a limit in a snapshot.
fn kept(door: &str, limit: &Limit) -> SnapshotLimit {
    let by: Vec<String> = limit.by.iter().map(text).collect();
    SnapshotLimit {
        door: door.to_owned(),
        name: limit.name.to_string(),
        by: by.join(","),
        unit: limit.unit,
        counting: SnapshotAlgorithm::Bucket(limit.algorithm.clone()),
    }
}

/// The description of all windows in a snapshot. The properties of each counter are part of its
/// key; `by` says how it is made of them.
fn kept_windows(door: &str) -> SnapshotLimit {
    let (name, by) = ("windows".to_owned(), evenkeel_engine::windows::KEY_FORM.to_owned());
    SnapshotLimit {
        door: door.to_owned(),
        name,
        by,
        unit: LimitUnit::Hits,
        counting: SnapshotAlgorithm::Windows,
    }
}

/// The description of all clients of a queue in a snapshot. A client has the key by which the first
/// limit counts it; after a change of that limit, no request has such a key.
fn kept_clients(door: &str) -> SnapshotLimit {
    let (name, by) = ("clients".to_owned(), String::new());
    SnapshotLimit {
        door: door.to_owned(),
        name,
        by,
        unit: LimitUnit::Hits,
        counting: SnapshotAlgorithm::Clients,
    }
}

/// A part of a key as text, in a form that means the same in every version.
fn text(part: &KeyPart) -> String {
    match part {
        KeyPart::Ip { v4, v6 } => format!("ip/{v4}/{v6}"),
        KeyPart::UserAgent => "user-agent".to_owned(),
        KeyPart::Header(name) => format!("header:{name}"),
        KeyPart::Cookie(name) => format!("cookie:{name}"),
        KeyPart::ApiKey => "api-key".to_owned(),
        KeyPart::Json(at) => format!("json:{at}"),
        KeyPart::Method => "method".to_owned(),
        KeyPart::Path(None) => "path".to_owned(),
        KeyPart::Path(Some(segments)) => format!("path:{segments}"),
        KeyPart::Vhost => "vhost".to_owned(),
        KeyPart::Host => "host".to_owned(),
        KeyPart::Fact(fact) => fact.name().to_owned(),
        KeyPart::All => "all".to_owned(),
        KeyPart::Tag => "tag".to_owned(),
    }
}

#[cfg(test)]
mod tests;
