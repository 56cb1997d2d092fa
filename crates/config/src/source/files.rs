//! A few files that belong together and change together: a certificate and its key.
//!
//! As with the configuration, their resolved paths are examined and their contents are compared.
//! Programs that renew certificates write one file after the other, so files that change from call
//! to call are still being written. The contents are interpreted by `tls`.

use super::presence::FilePresence;
use super::unsaved::UnsavedFiles;
use super::{digest, stamp};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum size of a file, in bytes; four times that of a bundle of all public authorities.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedFile {
    /// The path as it was given.
    pub path: PathBuf,
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// The time when the file was last written, in seconds since the Unix epoch; 0 if it has not
    /// been written yet. Programs that download a file may set it to the time that its publisher
    /// states.
    pub modified: u64,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}: {why}")]
pub struct FileReadError {
    /// The path as it was given.
    pub path: PathBuf,
    /// The error of the system.
    pub why: io::Error,
}

/// Stamps of the files, to detect changes. `None` for a file that does not exist.
type Stamps = Vec<Option<[i64; 5]>>;

/// A set of files and its last known state.
#[derive(Clone, Debug)]
pub struct WatchedFiles {
    paths: Vec<PathBuf>,
    /// Stamps when `look` last read the files; empty if it has not since `read`.
    read: Stamps,
    /// Stamps when the files were last examined.
    seen: Stamps,
    digest: Vec<u64>,
    presence: FilePresence,
    /// Why the files could not be read at the last look, as it was logged.
    unread: Option<String>,
    /// Maximum size of a file, in bytes.
    bytes_max: u64,
    /// Contents that are read in place of those on the disk.
    unsaved: Arc<UnsavedFiles>,
}

impl From<Vec<PathBuf>> for WatchedFiles {
    fn from(paths: Vec<PathBuf>) -> WatchedFiles {
        WatchedFiles::new(paths)
    }
}

impl WatchedFiles {
    /// A set of files that has not been examined yet.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> WatchedFiles {
        let (read, seen, digest) = (Vec::new(), Vec::new(), Vec::new());
        let presence = FilePresence::default();
        let (bytes_max, unread, unsaved) = (FILE_BYTES_MAX, None, Arc::default());
        WatchedFiles { paths, read, seen, digest, presence, unread, bytes_max, unsaved }
    }

    /// The paths as they were given.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The same set with another maximum size of a file than [`FILE_BYTES_MAX`].
    #[must_use]
    pub fn with_bytes_max(self, bytes_max: u64) -> WatchedFiles {
        WatchedFiles { bytes_max, ..self }
    }

    /// The same set; files that could not be written are read from memory.
    #[must_use]
    pub fn with_unsaved(self, unsaved: Arc<UnsavedFiles>) -> WatchedFiles {
        WatchedFiles { unsaved, ..self }
    }

    /// Reads all files, whether they have changed or not, in the order of their paths as given.
    ///
    /// # Errors
    /// The first file that cannot be read or is too large.
    pub fn read(&mut self) -> Result<Vec<WatchedFile>, FileReadError> {
        // The stamps count once `look` has read the files again; see `ConfigSource::load`.
        self.read.clear();
        let files = self.files()?;
        self.digest = files.iter().map(|file| digest(&file.bytes)).collect();
        Ok(files)
    }

    /// Reads all files if any of them has changed since the last read, and none since the last
    /// call. If a file is missing or cannot be read at the moment, the set counts as unchanged,
    /// because the file may be about to be replaced; if it stays away, this is logged. A file that
    /// is there but cannot be read is logged once, and again when it can be.
    pub fn look(&mut self) -> Option<Vec<WatchedFile>> {
        let stamps = self.stamps();
        let there = self.paths.iter().zip(stamps.iter().map(Option::is_some));
        self.presence.tell(there.map(|(path, there)| (path.as_path(), there)));
        let settled = self.seen == stamps;
        self.seen.clone_from(&stamps);
        if !settled || stamps == self.read || stamps.contains(&None) {
            return None;
        }
        let files = self.files();
        self.tell(files.as_ref().err());
        // After a failure each look tries again, even if the stamps are the old ones once more.
        self.read = if files.is_ok() { stamps } else { Stamps::new() };
        let files = files.ok()?;
        let digest: Vec<u64> = files.iter().map(|file| digest(&file.bytes)).collect();
        let changed = digest != self.digest;
        self.digest = digest;
        changed.then_some(files)
    }

    /// Logs whether the files can be read, if that has changed.
    fn tell(&mut self, error: Option<&FileReadError>) {
        let why = error.map(ToString::to_string);
        if why == self.unread {
            return;
        }
        match &why {
            Some(error) => tracing::warn!(
                %error,
                "changed file cannot be read; what it contained before stays in use"
            ),
            None => {
                let files = self.paths.iter().map(|path| path.display().to_string());
                let files = files.collect::<Vec<_>>().join(", ");
                tracing::info!(%files, "changed file can be read again");
            }
        }
        self.unread = why;
    }

    fn stamps(&self) -> Stamps {
        let each = |path: &PathBuf| self.unsaved.stamp(path).or_else(|| stamp(path));
        self.paths.iter().map(each).collect()
    }

    fn files(&self) -> Result<Vec<WatchedFile>, FileReadError> {
        let file = |path: &PathBuf| {
            let unsaved = self.unsaved.get(path).map(|bytes| Ok((bytes, 0)));
            match unsaved.unwrap_or_else(|| bytes(path, self.bytes_max)) {
                Ok((bytes, modified)) => Ok(WatchedFile { path: path.clone(), bytes, modified }),
                Err(why) => Err(FileReadError { path: path.clone(), why }),
            }
        };
        self.paths.iter().map(file).collect()
    }
}

/// The content of a file, and when it was last written.
fn bytes(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, u64)> {
    let meta = fs::metadata(path)?;
    // Opening a pipe would block until another process writes to it.
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if meta.len() > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok((bytes, u64::try_from(meta.mtime()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn texts(files: &[WatchedFile]) -> Vec<String> {
        files.iter().map(|file| String::from_utf8_lossy(&file.bytes).into_owned()).collect()
    }

    #[test]
    fn a_change_is_seen_once_it_has_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&a, "1").expect("written");
        fs::write(&b, "2").expect("written");
        let mut files = WatchedFiles::new(vec![a.clone(), b.clone()]);
        assert_eq!(texts(&files.read().expect("there")), ["1", "2"]);
        assert_eq!((files.look(), files.look()), (None, None));
        fs::write(&a, "11").expect("written");
        assert_eq!(files.look(), None);
        fs::write(&b, "22").expect("written");
        assert_eq!(files.look(), None);
        assert_eq!(texts(&files.look().expect("changed")), ["11", "22"]);
        assert_eq!(files.look(), None);
        // Writing the same text again is no change.
        fs::remove_file(&a).expect("removed");
        assert_eq!((files.look(), files.look()), (None, None));
        fs::write(&a, "11").expect("written");
        assert_eq!((files.look(), files.look(), files.look()), (None, None, None));
    }

    /// As in the test of `ConfigSource`, a file whose stamp does not change with its content.
    #[test]
    fn an_edit_that_leaves_the_stamps_after_a_read_is_seen() {
        let path = Path::new("/proc/thread-self/comm");
        fs::write(path, "one").expect("named");
        let mut files = WatchedFiles::new(vec![path.to_owned()]);
        assert_eq!(texts(&files.read().expect("there")), ["one\n"]);
        fs::write(path, "two").expect("named");
        assert_eq!(files.look(), None);
        assert_eq!(texts(&files.look().expect("changed")), ["two\n"]);
        assert_eq!(files.look(), None);
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_a_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("link");
        for name in ["one", "two"] {
            fs::write(folder.path().join(name), name).expect("written");
        }
        symlink("one", &link).expect("linked");
        let mut files = WatchedFiles::new(vec![link.clone()]);
        assert_eq!(texts(&files.read().expect("there")), ["one"]);
        symlink("two", folder.path().join("next")).expect("linked");
        fs::rename(folder.path().join("next"), &link).expect("renamed");
        assert_eq!(files.look(), None);
        assert_eq!(texts(&files.look().expect("changed")), ["two"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_until_it_can_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        fs::write(&path, "1").expect("written");
        let mut files = WatchedFiles::new(vec![path.clone()]).with_bytes_max(3);
        assert_eq!(texts(&files.read().expect("there")), ["1"]);
        fs::write(&path, "1234").expect("written");
        assert_eq!((files.look(), files.look(), files.look()), (None, None, None));
        let told = files.unread.clone().expect("told");
        assert!(told.ends_with("a: it has more than 3 bytes"), "{told}");
        fs::write(&path, "1").expect("written");
        assert_eq!((files.look(), files.look()), (None, None), "its content is the old one");
        assert_eq!(files.unread, None);
        fs::write(&path, "2").expect("written");
        assert_eq!(
            (0..2).find_map(|_| files.look()).map(|files| texts(&files)),
            Some(vec!["2".into()])
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let large = folder.path().join("large");
        fs::File::create(&large).and_then(|file| file.set_len(FILE_BYTES_MAX + 1)).expect("made");
        for (path, told) in [
            (folder.path().join("none"), "No such file"),
            (folder.path().to_owned(), "not a regular file"),
            (large, "more than"),
        ] {
            let mut files = WatchedFiles::new(vec![path.clone()]);
            let error = files.read().expect_err("unread").to_string();
            assert!(error.contains(told) && error.contains(&path.display().to_string()), "{error}");
            assert_eq!((files.look(), files.look()), (None, None));
        }
    }
}
