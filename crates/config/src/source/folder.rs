//! The files below a folder, which change together: the rules of the rate limit service.
//!
//! Every regular file counts, whatever its name. Links to files are followed, links to folders are
//! not. A file that cannot be read is logged and skipped. A mounted Kubernetes ConfigMap contains
//! its files twice, once below a folder with a name that begins with `..`, so such names are always
//! skipped. Changes are detected by path, inode, length and change time of all files; a folder that
//! changes from call to call is still being written. The contents are not interpreted here.

use super::bytes;
use crate::is_configuration;
use crate::tree;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of files.
pub const FILES_MAX: usize = 10_000;
/// Maximum size of a file, in bytes. The caller reports a larger one.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of all files together, in bytes.
pub const BYTES_MAX: u64 = 256 << 20;
/// Maximum nesting depth of folders.
const DEPTH_MAX: usize = 32;

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderFile {
    /// The path as it was found.
    pub name: String,
    /// The content, at most one byte more than [`FILE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// A folder or a single file, and its last known state.
#[derive(Clone, Debug)]
pub struct WatchedFolder {
    path: PathBuf,
    /// Whether names that begin with a dot are skipped.
    ignore_dot_files: bool,
    read: u64,
    seen: u64,
}

/// A file or folder directly in a folder that is to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderEntry {
    /// A configuration.
    Configuration(PathBuf),
    /// A file with the name of a configuration that cannot be read or is not valid YAML.
    Broken(PathBuf),
    /// Something else, and why it is no configuration.
    Other(PathBuf, &'static str),
}

/// The entries of a folder, in the order of their names, without those whose names begin with a
/// dot. Empty if it is no folder.
#[must_use]
pub fn entries(folder: &Path) -> Vec<FolderEntry> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let shown = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut paths: Vec<PathBuf> = shown.map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().map(entry).collect()
}

fn entry(path: PathBuf) -> FolderEntry {
    let kind = path.extension().and_then(|kind| kind.to_str());
    let named = kind.is_some_and(|kind| ["yaml", "yml", "json"].contains(&kind));
    match () {
        () if path.is_dir() => FolderEntry::Other(path, "it is a folder"),
        () if !named => FolderEntry::Other(path, "its name does not end in .yaml, .yml or .json"),
        () if path.exists() && !path.is_file() => FolderEntry::Other(path, "it is not a file"),
        () => match bytes(&path, FILE_BYTES_MAX) {
            Ok(bytes) if is_configuration(&path, &bytes) => FolderEntry::Configuration(path),
            Ok(bytes) => match tree::parse(&bytes) {
                Ok(root) if root.find(&["domain"]).is_some() => {
                    FolderEntry::Other(path, "it is a rule file; name it to have it checked")
                }
                Ok(_) => FolderEntry::Other(path, "it has no section of a configuration"),
                Err(_) => FolderEntry::Broken(path),
            },
            Err(_) => FolderEntry::Broken(path),
        },
    }
}

impl WatchedFolder {
    /// A folder that has not been examined yet.
    #[must_use]
    pub fn new(path: &Path, ignore_dot_files: bool) -> WatchedFolder {
        let path = path.to_owned();
        WatchedFolder { path, ignore_dot_files, read: 0, seen: 0 }
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all files, in the order of their names. A folder that does not exist has no files.
    ///
    /// # Errors
    /// If there are too many files, or their total size is too large.
    pub fn read(&mut self) -> io::Result<Vec<FolderFile>> {
        let stamps = self.stamps();
        self.read = stamps;
        self.seen = stamps;
        self.files()
    }

    /// Reads all files if any of them has changed since the last read, and none since the last
    /// call.
    ///
    /// # Errors
    /// As [`WatchedFolder::read`].
    pub fn look(&mut self) -> Option<io::Result<Vec<FolderFile>>> {
        let stamps = self.stamps();
        let settled = std::mem::replace(&mut self.seen, stamps) == stamps;
        if stamps == self.read || !settled || !self.path.exists() {
            return None;
        }
        self.read = stamps;
        Some(self.files())
    }

    fn files(&self) -> io::Result<Vec<FolderFile>> {
        let (mut files, mut all) = (Vec::new(), 0);
        for path in self.paths()? {
            match bytes(&path, FILE_BYTES_MAX) {
                Ok(bytes) => {
                    all += bytes.len() as u64;
                    if all > BYTES_MAX {
                        let path = self.path.display();
                        let what = format!("more than {BYTES_MAX} bytes in the files below {path}");
                        return Err(io::Error::other(what));
                    }
                    files.push(FolderFile { name: path.display().to_string(), bytes });
                }
                Err(error) => {
                    let file = path.display();
                    tracing::warn!(%file, %error, "a rule file cannot be read and is ignored");
                }
            }
        }
        Ok(files)
    }

    /// A hash over paths and metadata of all files, to detect changes.
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
