//! The robots as they run: their address lists and keys, from their files and key directories.
//!
//! The files are examined once a second, each by itself (`files`). A valid change is applied. An
//! invalid one is logged and ignored, so a list that is half written makes no robot an impostor.
//! Counts and used nonces survive a change. Directories are fetched elsewhere (the program's
//! `run`), which tells the keys here; the keys of a directory that cannot be fetched stay in use.

use super::files::{RobotFile, RobotFileError, RobotList};
use super::{Impostor, RobotProofs, Robots};
use crate::networks::file_status::{NetworkFileNote, NetworkFileStatus};
use crate::signature::{RobotKey, RobotKeys, SeenNonces, SignatureFault};
use evenkeel_config::settings::robots::Robot;
use evenkeel_config::settings::{RobotSettings, Settings};
use evenkeel_config::{FileProblem, StartProblem, StartProblems};
use evenkeel_core::condition::patterns::Patterns;
use evenkeel_core::units::Time;
use evenkeel_telemetry::counts::robots::{RobotCounts, signature_fault};
use evenkeel_telemetry::registry::{Counter, Registry};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Robots that follow their files and directories.
pub struct LiveRobots {
    settings: RobotSettings,
    kept: KeptParts,
    /// The files of each robot, in the order of the settings.
    files: Vec<RobotFiles>,
    /// What is shown of the address lists, in the order of the settings.
    lists: Vec<NetworkFileStatus>,
    /// The patterns of all robots.
    agents: Patterns,
    /// The keys of each directory that has been fetched.
    directories: Vec<(Box<str>, Vec<RobotKey>)>,
}

/// The parts that survive a change of the files.
struct KeptParts {
    seen: Arc<SeenNonces>,
    robots: Vec<(RobotCounts, Arc<Mutex<Option<Impostor>>>)>,
    faults: Vec<Counter>,
}

/// The files of a robot.
struct RobotFiles {
    lists: Vec<RobotFile<Arc<RobotList>>>,
    keys: Option<RobotFile<Vec<RobotKey>>>,
}

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
        let files = settings.list.iter().map(RobotFiles::load);
        let files = files.collect::<Result<Vec<_>, RobotFileError>>()?;
        let kept = KeptParts::new(settings, registry, before);
        let mut directories = before.map(|before| before.directories.clone()).unwrap_or_default();
        directories.retain(|(host, _)| settings.directories().any(|used| *used == **host));
        let paths = settings.list.iter().flat_map(|robot| &robot.ip_file);
        let read = files.iter().flat_map(|files| &files.lists);
        let status = |(path, list): (&PathBuf, &RobotFile<Arc<RobotList>>)| {
            let name = path.display().to_string();
            let mut status = NetworkFileStatus::new(name, path.clone(), registry);
            status.show(list.content.note);
            status
        };
        let lists: Vec<_> = paths.zip(read).map(status).collect();
        let old = before.iter().flat_map(|before| &before.lists);
        old.filter(|old| lists.iter().all(|list| list.path() != old.path()))
            .for_each(NetworkFileStatus::clear);
        let agents = settings.list.iter().flat_map(|robot| robot.user_agent.given());
        // Lists that can be compiled one by one may be too large as a whole; then each is searched.
        let agents = Patterns::new(agents).unwrap_or_else(|_| Patterns::any());
        let settings = settings.clone();
        Ok(LiveRobots { settings, kept, files, lists, agents, directories })
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

    /// Applies the files that have changed, and tells which of them are old. Returns whether
    /// anything is different. Must be called once a second.
    pub fn look(&mut self, now: Time) -> bool {
        let (mut changed, mut lists) = (false, self.lists.iter_mut());
        for RobotFiles { lists: own, keys } in &mut self.files {
            for (list, status) in own.iter_mut().zip(&mut lists) {
                if list.look() {
                    status.show(list.content.note);
                    changed = true;
                }
            }
            changed |= keys.as_mut().is_some_and(RobotFile::look);
        }
        self.lists.iter_mut().for_each(|list| _ = list.tell_age(now));
        changed
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
        let parts = self.settings.list.iter().zip(&self.files).zip(&self.kept.robots);
        for (owner, ((robot, files), (counts, last))) in (0..).zip(parts) {
            let pinned = files.keys.iter().flat_map(|keys| &keys.content);
            let pinned: Vec<_> = pinned.collect();
            pinned.iter().for_each(|key| keys.add(owner, (*key).clone(), None));
            let host = robot.directory.as_deref();
            let listed = self.directories.iter().find(|(other, _)| Some(&**other) == host);
            let fetched = listed.map(|(_, keys)| keys.as_slice());
            let listed = fetched.unwrap_or_default();
            listed.iter().for_each(|key| keys.add(owner, key.clone(), host));
            robots.push(RobotProofs {
                name: robot.name.clone(),
                user_agent: robot.user_agent.clone(),
                by_host: !robot.host.is_empty(),
                lists: files.lists.iter().map(|list| Arc::clone(&list.content)).collect(),
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

impl RobotFiles {
    fn load(robot: &Robot) -> Result<RobotFiles, RobotFileError> {
        let lists = robot.ip_file.iter().map(|path| RobotFile::load(path));
        let lists = lists.collect::<Result<Vec<_>, RobotFileError>>()?;
        let keys = robot.keys.as_deref().map(RobotFile::load).transpose()?;
        Ok(RobotFiles { lists, keys })
    }
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
    type Examine = fn(&Path) -> Option<RobotFileError>;
    let addresses: Examine = |path| RobotFile::<Arc<RobotList>>::load(path).err();
    let keys: Examine = |path| RobotFile::<Vec<RobotKey>>::load(path).err();
    let robots = settings.proxy.iter().flat_map(|proxy| &proxy.robots.list);
    let files = robots.flat_map(|robot| {
        let lists = robot.ip_file.iter().map(move |path| (path, addresses));
        lists.chain(robot.keys.iter().map(move |path| (path, keys)))
    });
    let problem = |(path, examine): (&PathBuf, Examine)| {
        let what = examine(path)?.to_string();
        Some(FileProblem { way: &["proxy", "robots"], path: path.clone(), what })
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
