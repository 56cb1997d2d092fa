//! The robots as they run: their address lists and keys, from their files.
//!
//! The files are examined once a second. A valid change is applied. An invalid one is logged and
//! ignored, so a list that is half written makes no robot an impostor. Counts and used nonces
//! survive a change.

use super::{Impostor, RobotList, RobotProofs, Robots};
use crate::networks::address_list::AddressList;
use crate::networks::{LIST_BYTES_MAX, NetworkFileError};
use crate::signature::{KeyFault, RobotKey, RobotKeys, SeenNonces, SignatureFault};
use evenkeel_config::settings::robots::Robot;
use evenkeel_config::settings::{RobotSettings, Settings};
use evenkeel_config::source::files::{FileReadError, WatchedFile, WatchedFiles};
use evenkeel_config::{StartProblem, StartProblems};
use evenkeel_telemetry::counts::robots::{RobotCounts, signature_fault};
use evenkeel_telemetry::registry::Registry;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// Error in the files of a robot.
#[derive(Debug, thiserror::Error)]
pub enum RobotFileError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] FileReadError),
    /// A file is no list of addresses.
    #[error("{path}:{why}")]
    List {
        /// Path of the file.
        path: PathBuf,
        /// The error in it.
        why: NetworkFileError,
    },
    /// A file is no key set.
    #[error("{path}: {why}")]
    Keys {
        /// Path of the file.
        path: PathBuf,
        /// The error in it.
        why: KeyFault,
    },
}

/// Robots that follow their files.
pub struct LiveRobots {
    settings: RobotSettings,
    files: WatchedFiles,
    kept: KeptParts,
    running: Arc<Robots>,
}

/// What survives a change of the files.
struct KeptParts {
    seen: Arc<SeenNonces>,
    robots: Vec<(RobotCounts, Arc<Mutex<Option<Impostor>>>)>,
    faults: Vec<evenkeel_telemetry::registry::Counter>,
}

impl LiveRobots {
    /// Reads the files of the robots. Used nonces and counts of `before` are kept.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn load(
        settings: &RobotSettings,
        registry: &Registry,
        before: Option<&LiveRobots>,
    ) -> Result<LiveRobots, RobotFileError> {
        let mut files = WatchedFiles::new(settings.files()).with_bytes_max(LIST_BYTES_MAX);
        let kept = KeptParts::new(settings, registry, before);
        let running = Arc::new(built(settings, &files.read()?, &kept)?);
        Ok(LiveRobots { settings: settings.clone(), files, kept, running })
    }

    /// The settings that the robots come from.
    #[must_use]
    pub fn settings(&self) -> &RobotSettings {
        &self.settings
    }

    /// The robots in use.
    #[must_use]
    pub fn running(&self) -> Arc<Robots> {
        Arc::clone(&self.running)
    }

    /// Applies the files if they have changed, and returns the changed robots. Must be called once
    /// a second.
    pub fn look(&mut self) -> Option<Arc<Robots>> {
        let files = self.files.look()?;
        match built(&self.settings, &files, &self.kept) {
            Ok(robots) => {
                self.running = Arc::new(robots);
                tracing::info!(target: "evenkeel::robots", "files of robots reloaded");
                Some(self.running())
            }
            Err(error) => {
                tracing::error!(
                    target: "evenkeel::robots", %error,
                    "files of robots refused; the previous ones stay in use"
                );
                None
            }
        }
    }
}

impl KeptParts {
    fn new(
        settings: &RobotSettings,
        registry: &Registry,
        before: Option<&LiveRobots>,
    ) -> KeptParts {
        let last = |robot: &Robot| {
            let same = |old: &&RobotProofs| old.name == robot.name;
            let old = before.and_then(|before| before.running.robots.iter().find(same));
            old.map(|old| Arc::clone(&old.last_impostor)).unwrap_or_default()
        };
        let part = |robot: &Robot| (RobotCounts::new(registry, &robot.name), last(robot));
        KeptParts {
            seen: before.map(|before| Arc::clone(&before.kept.seen)).unwrap_or_default(),
            robots: settings.list.iter().map(part).collect(),
            faults: SignatureFault::ALL.map(|f| signature_fault(registry, f.name())).into(),
        }
    }
}

/// Builds the robots from the files that `settings` names, in their order there.
fn built(
    settings: &RobotSettings,
    files: &[WatchedFile],
    kept: &KeptParts,
) -> Result<Robots, RobotFileError> {
    let mut files = files.iter();
    let mut keys = RobotKeys::new(&settings.signed_for);
    let mut robots = Vec::new();
    for (index, (robot, (counts, last))) in settings.list.iter().zip(&kept.robots).enumerate() {
        let lists = files.by_ref().take(robot.ip_file.len()).map(list);
        let lists = lists.collect::<Result<Vec<RobotList>, RobotFileError>>()?;
        let owner = u16::try_from(index).unwrap_or(u16::MAX);
        let pinned = match robot.keys.as_ref().and_then(|_| files.next()) {
            Some(file) => key_set(file)?,
            None => Vec::new(),
        };
        let count = pinned.len();
        pinned.into_iter().for_each(|key| keys.add(owner, key, None));
        robots.push(RobotProofs {
            name: robot.name.clone(),
            user_agent: robot.user_agent.clone(),
            by_host: !robot.host.is_empty(),
            lists,
            keys: count,
            counts: counts.clone(),
            last_impostor: Arc::clone(last),
        });
    }
    Ok(Robots { robots, keys, seen: Arc::clone(&kept.seen), faults: kept.faults.clone() })
}

fn list(file: &WatchedFile) -> Result<RobotList, RobotFileError> {
    let read = AddressList::parse(&file.bytes);
    let addresses = read.map_err(|why| RobotFileError::List { path: file.path.clone(), why })?;
    let made = addresses.created().unwrap_or(file.modified);
    Ok(RobotList { addresses, made })
}

fn key_set(file: &WatchedFile) -> Result<Vec<RobotKey>, RobotFileError> {
    let read = RobotKey::read_set(&file.bytes);
    read.map_err(|why| RobotFileError::Keys { path: file.path.clone(), why })
}

/// Finds the problems that a start would have with the files of robots.
#[must_use]
pub fn start_problems(settings: &Settings) -> StartProblems {
    let robots = settings.proxy.as_ref().map(|proxy| &proxy.robots);
    let registry = Registry::default();
    let error = robots.and_then(|robots| LiveRobots::load(robots, &registry, None).err());
    let fault =
        |error: RobotFileError| -> StartProblem { (&["proxy", "robots"], error.to_string()) };
    StartProblems { faults: error.map(fault).into_iter().collect(), ..StartProblems::default() }
}
