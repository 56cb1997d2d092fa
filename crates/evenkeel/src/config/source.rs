//! The file a configuration comes from, and whether it has changed.
//!
//! The file is looked at by its resolved path, so a symbolic link that is pointed elsewhere (as
//! Kubernetes does with mounted configurations) is a change like any other. Its bytes are compared,
//! not its times: some file systems keep times of a second, and a copy may keep the old one.

pub mod files;
pub mod folder;
pub mod mapper;

use super::fault::{Fault, Faults, Place};
use super::section::listed;
use super::settings::{Line, Settings};
use super::{Config, Found, check, parse, tree};
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The largest file of limits by prefix, in bytes.
const LIMITS_BYTES_MAX: u64 = 256 << 20;

/// Where a file is looked for if none is named, in this order.
pub const SEARCHED: [&str; 2] = ["/etc/evenkeel/evenkeel.yaml", "/etc/tempomat.json"];

/// Of a file: device, inode, length and time of change. Of two files, that of each.
type Stamp = Vec<[i64; 5]>;

/// A file, and what was last seen in it.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    /// Of the resolved file when it was last read: device, inode, length and time of change.
    stamp: Option<Stamp>,
    /// The same when it was last looked at.
    seen: Option<Stamp>,
    digest: u64,
    /// The file with further limits that it named when it was last read.
    listed: Option<PathBuf>,
    /// A running server must not wait for a pipe that nobody writes to; one that starts may.
    was_read: bool,
}

/// What a look at the file showed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Nothing new.
    None,
    /// It was changed, and is good.
    Good(Box<Config>),
    /// It was changed, and is faulty.
    Faulty(Faults),
}

impl Source {
    /// A file that has not been looked at.
    #[must_use]
    pub fn new(path: &Path) -> Source {
        Source {
            path: path.to_owned(),
            stamp: None,
            seen: None,
            digest: 0,
            listed: None,
            was_read: false,
        }
    }

    /// The path, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, changed or not.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(&mut self, cpus: f64) -> Result<Config, Faults> {
        self.stamp = self.stamps();
        if self.was_read && stamp(&self.path).is_none() && self.path.exists() {
            return Err(self.unread(&"it is no plain file, and can be read at the start only"));
        }
        self.was_read = true;
        let bytes = self.bytes()?;
        let mut digest = digest(&bytes);
        let config = self.parsed(&bytes, cpus, &mut digest);
        self.digest = digest;
        config
    }

    /// The configuration in these bytes of the file, with the limits of the file that it names.
    fn parsed(&mut self, bytes: &[u8], cpus: f64, seen: &mut u64) -> Result<Config, Faults> {
        let mut config = parse(&self.path.display().to_string(), bytes, cpus)?;
        self.listed = None;
        if let Some(line) = &mut config.settings.line {
            self.listed = line.limits_file.as_ref().map(|file| file.path.clone());
            let more = read_limits(line)?;
            *seen = digest(&[*seen, digest(&more)].map(u64::to_ne_bytes).concat());
        }
        Ok(config)
    }

    /// Of the file and of the one that it names; `None` if one of them is not there.
    fn stamps(&self) -> Option<Stamp> {
        [Some(&self.path), self.listed.as_ref()]
            .into_iter()
            .flatten()
            .map(|path| stamp(path))
            .collect()
    }

    /// Whether the program could start with this file, as far as files tell, and its warnings;
    /// `more` looks for what else it would stumble over.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn check(
        &self,
        cpus: f64,
        more: impl Fn(&Settings) -> Found,
    ) -> Result<Vec<String>, Faults> {
        check(&self.path.display().to_string(), &self.bytes()?, cpus, more)
    }

    fn bytes(&self) -> Result<Vec<u8>, Faults> {
        bytes(&self.path).map_err(|error| self.unread(&error))
    }

    fn unread(&self, why: &dyn std::fmt::Display) -> Faults {
        let what = match self.path.is_dir() {
            true => "is a folder, and what is to run is one file: name that".to_owned(),
            false => format!("cannot be read: {why}"),
        };
        Faults::new(&self.path.display().to_string(), vec![Fault::new(Place::default(), what)])
    }

    /// Reads the file if it was changed since it was last read, and not since the last look: one
    /// that changes from look to look is still being written. A file that is gone, or that cannot
    /// be read just now, has not changed: it may be on its way.
    pub fn look(&mut self, cpus: f64) -> Change {
        let stamp = self.stamps();
        let settled = std::mem::replace(&mut self.seen, stamp.clone()) == stamp;
        if stamp.is_none() || stamp == self.stamp || !settled {
            return Change::None;
        }
        let Ok(bytes) = bytes(&self.path) else { return Change::None };
        self.stamp = stamp;
        let mut seen = digest(&bytes);
        let read = self.parsed(&bytes, cpus, &mut seen);
        let same = std::mem::replace(&mut self.digest, seen) == seen;
        match read {
            _ if same => Change::None,
            Ok(config) => Change::Good(Box::new(config)),
            Err(faults) => Change::Faulty(faults),
        }
    }
}

/// Adds the limits of the file that the section names, and returns its bytes.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read_limits(line: &mut Line) -> Result<Vec<u8>, Faults> {
    let mut bytes = Vec::new();
    let Some(path) = line.limits_file.as_ref().map(|file| &file.path) else { return Ok(bytes) };
    let file = path.display().to_string();
    let unread = |why: String| {
        let what = format!("cannot be read: {why}");
        Faults::new(&file, vec![Fault::new(Place::default(), what)])
    };
    // To open what is no file, a pipe for example, may take for ever.
    let kind = std::fs::metadata(path).map_err(|error| unread(error.to_string()))?;
    if !kind.is_file() {
        return Err(unread("it is no file".to_owned()));
    }
    let opened = File::open(path).map_err(|error| unread(error.to_string()))?;
    let read = opened.take(LIMITS_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| unread(error.to_string()))?;
    if bytes.len() as u64 > LIMITS_BYTES_MAX {
        return Err(unread(format!("it has more than {LIMITS_BYTES_MAX} bytes")));
    }
    listed::add(line, &bytes).map_err(|faults| Faults::new(&file, faults))?;
    Ok(bytes)
}

/// There is no file to run: none is named, and none is where one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no configuration: $EVENKEEL_CONFIG is not set, and neither {} nor {} is there; name a file \
     with `--config FILE`, or run without one: `evenkeel proxy --backend URL`",
    SEARCHED[0], SEARCHED[1]
)]
pub struct NoFile;

/// The file that `serve` runs if none is named: what the environment says, else the first that is
/// there.
///
/// # Errors
/// [`NoFile`] if there is none.
pub fn default_path() -> Result<PathBuf, NoFile> {
    choose(std::env::var_os("EVENKEEL_CONFIG"), |path| path.exists())
}

fn choose(named: Option<OsString>, there: impl Fn(&Path) -> bool) -> Result<PathBuf, NoFile> {
    let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = || SEARCHED.iter().map(PathBuf::from).find(|path| there(path));
    named.or_else(found).ok_or(NoFile)
}

/// At most one byte more than may be parsed: enough to see that it is too much.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(tree::CONFIGURATION.bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `None` for what is no plain file: a pipe can be read once, and there is nothing to look at.
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

/// Only compared within this process.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_is_named_goes_first_and_none_is_told() {
        let none = |_: &Path| false;
        let second = |path: &Path| path == Path::new(SEARCHED[1]);
        let named = || Some(OsString::from("/a.yaml"));
        assert_eq!(choose(named(), second), Ok(PathBuf::from("/a.yaml")));
        assert_eq!(choose(named(), none), Ok(PathBuf::from("/a.yaml")));
        assert_eq!(choose(None, second), Ok(PathBuf::from(SEARCHED[1])));
        assert_eq!(choose(Some(OsString::new()), none), Err(NoFile));
        let told = NoFile.to_string();
        for place in [SEARCHED[0], SEARCHED[1], "$EVENKEEL_CONFIG", "--config", "--backend"] {
            assert!(told.contains(place), "{told}");
        }
    }
}
