//! The robots as they run: their address lists and keys, from their files and key directories.
//!
//! The files are examined once a second. A valid change is applied. An invalid one is logged and
//! ignored, so a list that is half written makes no robot an impostor. Counts and used nonces
//! survive a change. Directories are fetched elsewhere (the program's `run`), which tells the keys
//! here; the keys of a directory that cannot be fetched stay in use.

use super::{Impostor, RobotList, RobotProofs, Robots};
use crate::networks::address_list::AddressList;
use crate::networks::file_status::{NetworkFileNote, NetworkFileStatus};
use crate::networks::{LIST_BYTES_MAX, NetworkFileError};
use crate::signature::{KeyFault, RobotKey, RobotKeys, SeenNonces, SignatureFault};
use evenkeel_config::settings::robots::Robot;
use evenkeel_config::settings::{RobotSettings, Settings};
use evenkeel_config::source::files::{FileReadError, WatchedFile, WatchedFiles};
use evenkeel_config::{FileProblem, StartProblem, StartProblems};
use evenkeel_core::condition::patterns::Patterns;
use evenkeel_core::units::Time;
use evenkeel_telemetry::counts::robots::{RobotCounts, signature_fault};
use evenkeel_telemetry::registry::{Counter, Registry};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
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

/// Robots that follow their files and directories.
pub struct LiveRobots {
    settings: RobotSettings,
    files: WatchedFiles,
    kept: KeptParts,
    parts: FileParts,
    /// What is shown of the address lists, in the order of the settings.
    lists: Vec<NetworkFileStatus>,
    /// The patterns of all robots.
    agents: Patterns,
    /// The keys of each directory that has been fetched.
    directories: Vec<(Box<str>, Vec<RobotKey>)>,
}

/// What survives a change of the files.
struct KeptParts {
    seen: Arc<SeenNonces>,
    robots: Vec<(RobotCounts, Arc<Mutex<Option<Impostor>>>)>,
    faults: Vec<Counter>,
}

/// What the files contain, for each robot in the order of the settings.
type FileParts = Vec<(Arc<[RobotList]>, Vec<RobotKey>)>;

impl LiveRobots {
    /// Reads the files of the robots. Used nonces, counts and keys of directories are taken over
    /// from `before`.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn load(
        settings: &RobotSettings,
        registry: &Registry,
        before: Option<&LiveRobots>,
    ) -> Result<LiveRobots, RobotFileError> {
        let mut files = WatchedFiles::new(settings.files()).with_bytes_max(LIST_BYTES_MAX);
        let parts = parts(settings, &files.read()?)?;
        let kept = KeptParts::new(settings, registry, before);
        let mut directories = before.map(|before| before.directories.clone()).unwrap_or_default();
        directories.retain(|(host, _)| settings.directories().any(|used| *used == **host));
        let status = |path: &PathBuf| {
            NetworkFileStatus::new(path.display().to_string(), path.clone(), registry)
        };
        let lists: Vec<_> = settings.list.iter().flat_map(|r| &r.ip_file).map(status).collect();
        let old = before.iter().flat_map(|before| &before.lists);
        old.filter(|old| lists.iter().all(|list| list.path() != old.path()))
            .for_each(NetworkFileStatus::clear);
        let agents = settings.list.iter().flat_map(|robot| robot.user_agent.given());
        // Lists that can be compiled one by one may be too large as a whole; then each is searched.
        let agents = Patterns::new(agents).unwrap_or_else(|_| Patterns::any());
        let settings = settings.clone();
        let mut live = LiveRobots { settings, files, kept, parts, lists, agents, directories };
        live.show();
        Ok(live)
    }

    /// The settings that the robots come from.
    #[must_use]
    pub fn settings(&self) -> &RobotSettings {
        &self.settings
    }

    /// What is known of each address list.
    pub fn lists(&self) -> impl Iterator<Item = (&Path, NetworkFileNote)> {
        self.lists.iter().map(|list| (list.path(), list.note()))
    }

    /// Shows that the files are no longer in use.
    pub fn clear(&self) {
        self.lists.iter().for_each(NetworkFileStatus::clear);
    }

    fn show(&mut self) {
        let read = self.parts.iter().flat_map(|(lists, _)| &**lists);
        self.lists.iter_mut().zip(read).for_each(|(list, read)| list.show(read.note));
    }

    /// Applies the files if they have changed, and tells which of them are old. Returns whether
    /// anything is different. Must be called once a second.
    pub fn look(&mut self, now: Time) -> bool {
        let changed = self.files.look().is_some_and(|files| self.take(&files));
        self.lists.iter_mut().for_each(|list| _ = list.tell_age(now));
        changed
    }

    fn take(&mut self, files: &[WatchedFile]) -> bool {
        match parts(&self.settings, files) {
            Ok(parts) => {
                self.parts = parts;
                self.show();
                tracing::info!(target: "evenkeel::robots", "files of robots reloaded");
                true
            }
            Err(error) => {
                tracing::error!(
                    target: "evenkeel::robots", %error,
                    "files of robots refused; the previous ones stay in use"
                );
                false
            }
        }
    }

    /// Applies the keys of a directory. They replace those that it had before.
    pub fn learn(&mut self, host: &str, keys: Vec<RobotKey>) {
        self.directories.retain(|(other, _)| **other != *host);
        self.directories.push((host.into(), keys));
    }

    /// The robots as they are to run.
    #[must_use]
    pub fn robots(&self) -> Robots {
        let mut keys = RobotKeys::new(&self.settings.signed_for);
        let mut robots = Vec::new();
        let parts = self.settings.list.iter().zip(&self.parts).zip(&self.kept.robots);
        for (owner, ((robot, (lists, pinned)), (counts, last))) in (0..).zip(parts) {
            pinned.iter().for_each(|key| keys.add(owner, key.clone(), None));
            let host = robot.directory.as_deref();
            let listed = self.directories.iter().find(|(other, _)| Some(&**other) == host);
            let fetched = listed.map(|(_, keys)| keys.as_slice());
            let listed = fetched.unwrap_or_default();
            listed.iter().for_each(|key| keys.add(owner, key.clone(), host));
            robots.push(RobotProofs {
                name: robot.name.clone(),
                user_agent: robot.user_agent.clone(),
                by_host: !robot.host.is_empty(),
                lists: Arc::clone(lists),
                awaits_keys: host.is_some() && fetched.is_none(),
                keys: pinned.len() + listed.len(),
                counts: counts.clone(),
                last_impostor: Arc::clone(last),
            });
        }
        let KeptParts { seen, faults, .. } = &self.kept;
        let agents = self.agents.clone();
        Robots { robots, agents, keys, seen: Arc::clone(seen), faults: faults.clone() }
    }
}

impl KeptParts {
    fn new(
        settings: &RobotSettings,
        registry: &Registry,
        before: Option<&LiveRobots>,
    ) -> KeptParts {
        let last = |robot: &Robot| {
            let before = before?;
            let mut old = before.settings.list.iter().zip(&before.kept.robots);
            let (_, (_, last)) = old.find(|(old, _)| old.name == robot.name)?;
            Some(Arc::clone(last))
        };
        let part = |robot: &Robot| {
            (RobotCounts::new(registry, &robot.name), last(robot).unwrap_or_default())
        };
        KeptParts {
            seen: before.map(|before| Arc::clone(&before.kept.seen)).unwrap_or_default(),
            robots: settings.list.iter().map(part).collect(),
            faults: SignatureFault::ALL.map(|f| signature_fault(registry, f.name())).into(),
        }
    }
}

/// Reads the files that `settings` names, in their order there.
fn parts(settings: &RobotSettings, files: &[WatchedFile]) -> Result<FileParts, RobotFileError> {
    let mut files = files.iter();
    let part = |robot: &Robot| {
        let lists = files.by_ref().take(robot.ip_file.len()).map(list);
        let lists = lists.collect::<Result<Arc<[RobotList]>, RobotFileError>>()?;
        let keys = robot.keys.as_ref().and_then(|_| files.next()).map(key_set).transpose()?;
        Ok((lists, keys.unwrap_or_default()))
    };
    settings.list.iter().map(part).collect()
}

fn list(file: &WatchedFile) -> Result<RobotList, RobotFileError> {
    let read = AddressList::parse(&file.bytes);
    let addresses = read.map_err(|why| RobotFileError::List { path: file.path.clone(), why })?;
    let note = NetworkFileNote::of_list(&addresses, file.modified);
    Ok(RobotList { addresses, note })
}

fn key_set(file: &WatchedFile) -> Result<Vec<RobotKey>, RobotFileError> {
    let read = RobotKey::read_set(&file.bytes);
    read.map_err(|why| RobotFileError::Keys { path: file.path.clone(), why })
}

/// Finds the problems that a start would have with the files of robots. An address list that is
/// old is a doubt.
#[must_use]
pub fn start_problems(settings: &Settings, now: Time) -> StartProblems {
    let way = &["proxy", "robots"];
    let mut problems = StartProblems::default();
    match trial(settings) {
        None => {}
        Some(Ok(robots)) => {
            let doubt = |(path, note): (&Path, NetworkFileNote)| -> Option<StartProblem> {
                Some((way, note.old_text(path, now)?))
            };
            problems.doubts = robots.lists().filter_map(doubt).collect();
        }
        Some(Err(_)) => problems.files = file_problems(settings),
    }
    problems
}

/// The files of robots that cannot be used.
fn file_problems(settings: &Settings) -> Vec<FileProblem> {
    type Examine = fn(&WatchedFile) -> Result<(), RobotFileError>;
    let addresses: Examine = |file| list(file).map(|_| ());
    let keys: Examine = |file| key_set(file).map(|_| ());
    let robots = settings.proxy.iter().flat_map(|proxy| &proxy.robots.list);
    let files = robots.flat_map(|robot| {
        let lists = robot.ip_file.iter().map(move |path| (path, addresses));
        lists.chain(robot.keys.iter().map(move |path| (path, keys)))
    });
    let problem = |(path, examine): (&PathBuf, Examine)| {
        let read = WatchedFiles::new(vec![path.clone()]).with_bytes_max(LIST_BYTES_MAX).read();
        let examined = read.map_err(RobotFileError::from);
        let error = examined.and_then(|files| files.iter().try_for_each(examine)).err()?;
        Some(FileProblem { way: &["proxy", "robots"], path: path.clone(), what: error.to_string() })
    };
    files.filter_map(problem).collect()
}

/// What is in each address list, in a line.
#[must_use]
pub fn notes(settings: &Settings) -> Vec<String> {
    let Some(Ok(robots)) = trial(settings) else { return Vec::new() };
    let lists = robots.lists();
    lists.map(|(path, note)| format!("`proxy.robots`: {}", note.text(path))).collect()
}

/// The robots as a start would load them; `None` without a proxy.
fn trial(settings: &Settings) -> Option<Result<LiveRobots, RobotFileError>> {
    let robots = settings.proxy.as_ref().map(|proxy| &proxy.robots);
    robots.map(|robots| LiveRobots::load(robots, &Registry::default(), None))
}
