//! The files of a folder as one thing that changes: the rules of the rate limit service.
//!
//! Every regular file below it counts, whatever it is called; links to files are followed, links
//! to folders are not entered, and what cannot be read is told and left out. A mounted Kubernetes
//! ConfigMap holds its files twice, once below a `..` folder: such names are passed over always.
//! Contents are compared, not times, and a folder that changes from look to look is still being
//! written. What the files say is not this module's business.

use crate::config::is_configuration;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most files that are read.
pub const FILES_MAX: usize = 10_000;
/// The largest file, in bytes; a larger one is a fault of whatever reads it.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// The most that all files may hold, in bytes.
pub const BYTES_MAX: u64 = 256 << 20;
/// How deep folders may lie in each other.
const DEPTH_MAX: usize = 32;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path, as it was found.
    pub name: String,
    /// What it holds: at most a byte more than [`FILE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// A folder, or a single file, and what was last seen of it.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// Names that begin with a dot are passed over.
    ignore_dot_files: bool,
    read: u64,
    seen: u64,
}

/// The configurations that lie in a folder itself, in the order of their names; none if it is none.
#[must_use]
pub fn configurations(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| {
        let kind = path.extension().and_then(|kind| kind.to_str());
        let named = kind.is_some_and(|kind| ["yaml", "yml", "json"].contains(&kind));
        named && path.is_file() && bytes(path).is_ok_and(|bytes| is_configuration(path, &bytes))
    });
    found.sort();
    found
}

impl Folder {
    /// A folder that has not been looked at.
    #[must_use]
    pub fn new(path: &Path, ignore_dot_files: bool) -> Folder {
        let path = path.to_owned();
        Folder { path, ignore_dot_files, read: 0, seen: 0 }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All files, in the order of their names.
    ///
    /// # Errors
    /// If there are too many, or they are too large. A folder that is not there has no files.
    pub fn read(&mut self) -> io::Result<Vec<File>> {
        let stamps = self.stamps();
        self.read = stamps;
        self.seen = stamps;
        self.files()
    }

    /// All files if any was changed since they were last read, and none since the last look.
    ///
    /// # Errors
    /// As [`Folder::read`].
    pub fn look(&mut self) -> Option<io::Result<Vec<File>>> {
        let stamps = self.stamps();
        let settled = std::mem::replace(&mut self.seen, stamps) == stamps;
        if stamps == self.read || !settled || !self.path.exists() {
            return None;
        }
        self.read = stamps;
        Some(self.files())
    }

    fn files(&self) -> io::Result<Vec<File>> {
        let (mut files, mut all) = (Vec::new(), 0);
        for path in self.paths()? {
            match bytes(&path) {
                Ok(bytes) => {
                    all += bytes.len() as u64;
                    if all > BYTES_MAX {
                        let path = self.path.display();
                        let what = format!("more than {BYTES_MAX} bytes in the files below {path}");
                        return Err(io::Error::other(what));
                    }
                    files.push(File { name: path.display().to_string(), bytes });
                }
                Err(error) => {
                    let file = path.display();
                    tracing::warn!(%file, %error, "a rule file cannot be read and is left out");
                }
            }
        }
        Ok(files)
    }

    /// What tells one state of all files from another.
    fn stamps(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for path in self.paths().unwrap_or_default() {
            path.hash(&mut hasher);
            let stamp = fs::metadata(&path).map(|meta| {
                [meta.ino(), meta.len(), meta.ctime() as u64, meta.ctime_nsec() as u64]
            });
            stamp.ok().hash(&mut hasher);
        }
        hasher.finish()
    }

    fn paths(&self) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        if self.path.is_file() {
            paths.push(self.path.clone());
        } else {
            self.collect(&self.path, DEPTH_MAX, &mut paths)?;
        }
        paths.sort();
        Ok(paths)
    }

    fn collect(&self, folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            if name.starts_with("..") || (self.ignore_dot_files && name.starts_with('.')) {
                continue;
            }
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && depth > 0 {
                self.collect(&path, depth - 1, paths)?;
            } else if path.is_file() {
                paths.push(path);
            }
            if paths.len() > FILES_MAX {
                let what = format!("more than {FILES_MAX} files below {}", self.path.display());
                return Err(io::Error::other(what));
            }
        }
        Ok(())
    }
}

/// At most one byte more than may be parsed: enough to see that it is too much.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
