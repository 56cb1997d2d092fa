//! The configuration file, and the detection of its changes.
//!
//! The file is examined at its resolved path, so a symbolic link with a new target (as Kubernetes
//! does with mounted configurations) is a change like any other. A different stamp (device, inode,
//! length, change time) only causes the file to be read again; whether the configuration has
//! changed is decided by its bytes.

pub mod files;
pub mod folder;
pub mod included;
pub mod mapper;
mod presence;
pub mod unsaved;

use super::fault::{ConfigFault, ConfigFaults, TextPlace};
use super::machine::Machine;
use super::settings::line::limits_file;
use super::settings::{LineSettings, Settings};
use super::{Config, StartProblems, check, include, joined, parse, tree};
use presence::FilePresence;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum size of a configuration, in bytes.
const CONFIG_BYTES_MAX: u64 = tree::CONFIGURATION.bytes_max as u64;
/// Maximum size of the file that `limits_file` names, in bytes.
const LIMITS_BYTES_MAX: u64 = 256 << 20;

/// Default paths of the configuration, in this order.
pub const DEFAULT_PATHS: [&str; 2] = ["/etc/evenkeel/evenkeel.yaml", "/etc/tempomat.json"];

/// Device, inode, length and change time (seconds and nanoseconds) of each file.
type Stamp = Vec<[i64; 5]>;

/// A configuration file and its last known state.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    path: PathBuf,
    /// Stamp of the resolved file when `look` last read it; `None` if it has not since `load`.
    stamp: Option<Stamp>,
    /// Stamp when it was last examined.
    seen: Option<Stamp>,
    digest: u64,
    /// Paths of the files with groups and further limits, as the configuration named them when it
    /// was last read without faults of its own.
    listed: Vec<PathBuf>,
    /// Paths with `*` of which the files are included, from the same time.
    patterns: Vec<PathBuf>,
    /// Whether the configuration has faults of its own. It may name files that `listed` does not
    /// have, and one of them may be what is wrong, so it is read at each call.
    is_faulty: bool,
    /// Whether the file was read before. The first read may wait for a pipe; a running process must
    /// not.
    was_read: bool,
    presence: FilePresence,
}

/// Result of examining the file.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigChange {
    /// The file has not changed.
    None,
    /// The file has changed and has no faults.
    Good(Box<Config>),
    /// The file has changed and has faults.
    Faulty(ConfigFaults),
}

impl ConfigSource {
    /// A file that has not been examined yet.
    #[must_use]
    pub fn new(path: &Path) -> ConfigSource {
        ConfigSource { path: path.to_owned(), ..ConfigSource::default() }
    }

    /// The path as the user gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, whether it has changed or not.
    ///
    /// # Errors
    /// All faults of the file.
    pub fn load(&mut self, machine: impl Into<Machine>) -> Result<Config, ConfigFaults> {
        // An edit in the same tick of the clock, to the same length, leaves the stamp as it is. So
        // `look` reads the file once more, when the last change is older than a tick.
        self.stamp = None;
        if self.was_read && stamp(&self.path).is_none() && self.path.exists() {
            return Err(self.unread(&"it is not a regular file, and can be read only at the start"));
        }
        self.was_read = true;
        let bytes = self.bytes()?;
        let (config, digest) = self.read(&bytes, machine.into());
        self.digest = digest;
        config
    }

    /// Reads the configuration in `bytes` and the files that it names. Returns the digest of all
    /// of them; if there are faults, that of the faults is part of it.
    fn read(&mut self, bytes: &[u8], machine: Machine) -> (Result<Config, ConfigFaults>, u64) {
        let mut seen = digest(bytes);
        let config = self.parsed(bytes, machine, &mut seen);
        if let Err(faults) = &config {
            add(&mut seen, digest(faults.to_string().as_bytes()));
        }
        (config, seen)
    }

    /// Parses the configuration in `bytes` and reads the files of groups and limits that it names.
    /// Adds the digests of those files to `seen`.
    fn parsed(
        &mut self,
        bytes: &[u8],
        machine: Machine,
        seen: &mut u64,
    ) -> Result<Config, ConfigFaults> {
        self.is_faulty = true;
        let mut config = parse(&self.path.display().to_string(), bytes, machine)?;
        self.is_faulty = false;
        self.listed.clone_from(&config.includes.named);
        self.patterns.clone_from(&config.includes.patterns);
        config.includes.files.iter().for_each(|file| add(seen, file.digest));
        for file in config.settings.included() {
            self.listed.push(file.path.clone());
            add(seen, file.digest);
        }
        if let Some(line) = &mut config.settings.line {
            self.listed.extend(line.limits_file.as_ref().map(|file| file.path.clone()));
            add(seen, digest(&read_limits(line)?));
        }
        Ok(config)
    }

    /// Stamps of the file and of those that it names. `None` if the file does not exist. A file
    /// that it names and that does not exist has the stamp that it had when it was last read: it
    /// may be about to be replaced, and must not hide a change of the other files. Of files that
    /// match a pattern of `include`, the paths count too: they may be added and removed.
    fn stamps(&self) -> Option<Stamp> {
        let before = |at: usize| self.stamp.as_ref().and_then(|all| all.get(at)).copied();
        let listed = self.listed.iter().zip(1..);
        let listed =
            listed.map(|(path, at)| stamp(path).or_else(|| before(at)).unwrap_or_default());
        let own = stamp(&self.path)?;
        let matched = self.patterns.iter().filter_map(|path| include::matched(path).ok()).flatten();
        let matched = matched.flat_map(|path| {
            let name = digest(path.as_os_str().as_bytes()).cast_signed();
            [[name, 0, 0, 0, 0], stamp(&path).unwrap_or_default()]
        });
        Some(std::iter::once(own).chain(listed).chain(matched).collect())
    }

    /// Checks whether a process could start with this file, and returns warnings. `more` finds
    /// further problems of a start.
    ///
    /// # Errors
    /// All faults and problems.
    pub fn check(
        &self,
        machine: impl Into<Machine>,
        more: impl Fn(&Settings) -> StartProblems,
    ) -> Result<Vec<String>, ConfigFaults> {
        check(&self.path.display().to_string(), &self.bytes()?, machine, more)
    }

    /// Whether the file, or one that it includes, has the key at this path of keys. False if it
    /// cannot be read.
    #[must_use]
    pub fn names(&self, way: &[&str]) -> bool {
        let bytes = self.bytes().ok();
        let name = self.path.display().to_string();
        let tree = bytes.and_then(|bytes| joined(&name, &bytes).ok());
        tree.is_some_and(|tree| tree.root.find(way).is_some())
    }

    fn bytes(&self) -> Result<Vec<u8>, ConfigFaults> {
        bytes(&self.path, CONFIG_BYTES_MAX).map_err(|error| self.unread(&error))
    }

    fn unread(&self, why: &dyn std::fmt::Display) -> ConfigFaults {
        let why = why.to_string();
        let what = match self.path.is_dir() {
            true => "is a folder; name one configuration file".to_owned(),
            // The number of the error says nothing that its name does not.
            false => format!("cannot be read: {}", why.split(" (os error").next().unwrap_or(&why)),
        };
        ConfigFaults::new(
            &self.path.display().to_string(),
            vec![ConfigFault::new(TextPlace::default(), what)],
        )
    }

    /// Reads the file if it may have changed since it was last read, but not since the last call: a
    /// file that changes from call to call is still being written. A file that is missing or cannot
    /// be read at the moment counts as unchanged, because it may be about to be replaced; if it
    /// stays away, this is logged.
    pub fn look(&mut self, machine: impl Into<Machine>) -> ConfigChange {
        let files = std::iter::once(&self.path).chain(&self.listed);
        self.presence.tell(files.map(|path| (path.as_path(), path.exists())));
        let stamp = self.stamps();
        let settled = std::mem::replace(&mut self.seen, stamp.clone()) == stamp;
        let is_known = stamp == self.stamp && !self.is_faulty;
        if stamp.is_none() || is_known || !settled {
            return ConfigChange::None;
        }
        let Ok(bytes) = bytes(&self.path, CONFIG_BYTES_MAX) else { return ConfigChange::None };
        self.stamp = stamp;
        let (read, seen) = self.read(&bytes, machine.into());
        let same = std::mem::replace(&mut self.digest, seen) == seen;
        match read {
            _ if same => ConfigChange::None,
            Ok(config) => ConfigChange::Good(Box::new(config)),
            Err(faults) => ConfigChange::Faulty(faults),
        }
    }
}

/// Adds the limits of the file that the section names, and returns the bytes of that file; empty if
/// there is none.
///
/// # Errors
/// All faults of that file.
pub fn read_limits(line: &mut LineSettings) -> Result<Vec<u8>, ConfigFaults> {
    let Some(path) = line.limits_file.as_ref().map(|file| &file.path) else {
        return Ok(Vec::new());
    };
    let file = path.display().to_string();
    let unread = |why: String| {
        let what = format!("cannot be read: {why}");
        ConfigFaults::new(&file, vec![ConfigFault::new(TextPlace::default(), what)])
    };
    // Opening something other than a file, a pipe for example, may block forever.
    let kind = std::fs::metadata(path).map_err(|error| unread(error.to_string()))?;
    if !kind.is_file() {
        return Err(unread("it is not a file".to_owned()));
    }
    let bytes = bytes(path, LIMITS_BYTES_MAX).map_err(|error| unread(error.to_string()))?;
    if bytes.len() as u64 > LIMITS_BYTES_MAX {
        return Err(unread(format!("it has more than {LIMITS_BYTES_MAX} bytes")));
    }
    limits_file::add(line, &bytes).map_err(|faults| ConfigFaults::new(&file, faults))?;
    Ok(bytes)
}

/// Error: no configuration is named, and none exists at the default paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no configuration: $EVENKEEL_CONFIG is not set, and neither {} nor {} exists; name a file \
     with `--config FILE`, or run without a file: `evenkeel proxy --backend URL`",
    DEFAULT_PATHS[0], DEFAULT_PATHS[1]
)]
pub struct NoConfigError;

/// Path of the configuration for `serve` without an argument: `$EVENKEEL_CONFIG`, or the first
/// default path that exists.
///
/// # Errors
/// [`NoConfigError`] if there is none.
pub fn default_path() -> Result<PathBuf, NoConfigError> {
    choose(std::env::var_os("EVENKEEL_CONFIG"), |path| path.exists())
}

fn choose(
    named: Option<OsString>,
    there: impl Fn(&Path) -> bool,
) -> Result<PathBuf, NoConfigError> {
    let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = || DEFAULT_PATHS.iter().map(PathBuf::from).find(|path| there(path));
    named.or_else(found).ok_or(NoConfigError)
}

/// Reads at most one byte more than `max`, so that the caller can detect a file that is too large.
fn bytes(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Stamp of a regular file. `None` for anything else: a pipe can be read only once.
fn stamp(path: &Path) -> Option<[i64; 5]> {
    let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let signed = |n: u64| i64::from_ne_bytes(n.to_ne_bytes());
    Some([
        signed(meta.dev()),
        signed(meta.ino()),
        signed(meta.len()),
        meta.ctime(),
        meta.ctime_nsec(),
    ])
}

/// Adds a digest to another one.
fn add(seen: &mut u64, more: u64) {
    *seen = digest(&[*seen, more].map(u64::to_ne_bytes).concat());
}

/// Hash of the bytes. It is only compared within this process.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of a thread in `/proc` is a file whose stamp does not change with its content, like
    /// one that is edited twice in one tick of the clock.
    #[test]
    fn an_edit_that_leaves_the_stamp_after_a_load_is_seen() {
        let path = Path::new("/proc/thread-self/comm");
        let mut source = ConfigSource::new(path);
        std::fs::write(path, "one").expect("named");
        assert!(source.load(1.0).is_err());
        std::fs::write(path, "two").expect("named");
        assert_eq!(source.look(1.0), ConfigChange::None, "it may still be being written");
        assert!(matches!(source.look(1.0), ConfigChange::Faulty(_)));
        assert_eq!(source.look(1.0), ConfigChange::None);
    }

    #[test]
    fn the_file_that_is_named_goes_first_and_none_is_told() {
        let none = |_: &Path| false;
        let second = |path: &Path| path == Path::new(DEFAULT_PATHS[1]);
        let named = || Some(OsString::from("/a.yaml"));
        assert_eq!(choose(named(), second), Ok(PathBuf::from("/a.yaml")));
        assert_eq!(choose(named(), none), Ok(PathBuf::from("/a.yaml")));
        assert_eq!(choose(None, second), Ok(PathBuf::from(DEFAULT_PATHS[1])));
        assert_eq!(choose(Some(OsString::new()), none), Err(NoConfigError));
        let told = NoConfigError.to_string();
        for place in
            [DEFAULT_PATHS[0], DEFAULT_PATHS[1], "$EVENKEEL_CONFIG", "--config", "--backend"]
        {
            assert!(told.contains(place), "{told}");
        }
    }
}
