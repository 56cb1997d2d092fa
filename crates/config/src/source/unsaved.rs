//! Files that could not be written: their contents, in place of what is on the disk.
//!
//! A program that makes a file for itself keeps it here while the disk is full or read-only. Those
//! that read it (`WatchedFiles`) see the same change as if it had been written. To try again to
//! write it is left to the crate that has put it here.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// In place of the device of a file: no device has this number.
const NO_DEVICE: i64 = -1;

/// Contents of files by path. There are as many as were put here and not removed.
#[derive(Default)]
pub struct UnsavedFiles(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    files: BTreeMap<PathBuf, (i64, Vec<u8>)>,
    /// The number of the last content.
    version: i64,
}

impl UnsavedFiles {
    /// Sets the content of a file.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut contents = self.0.lock();
        contents.version += 1;
        let version = contents.version;
        contents.files.insert(path.to_owned(), (version, bytes.to_owned()));
    }

    /// Removes a file: it has been written, or is not wanted any more.
    pub fn remove(&self, path: &Path) {
        self.0.lock().files.remove(path);
    }

    /// The content of a file, if it is not on the disk.
    #[must_use]
    pub fn get(&self, path: &Path) -> Option<Vec<u8>> {
        self.0.lock().files.get(path).map(|(_, bytes)| bytes.clone())
    }

    /// The paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.lock().files.keys().cloned().collect()
    }

    /// Whether all files are on the disk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().files.is_empty()
    }

    /// What differs after each change, as the stamp of a file does.
    pub(super) fn stamp(&self, path: &Path) -> Option<[i64; 5]> {
        self.0.lock().files.get(path).map(|(version, _)| [NO_DEVICE, *version, 0, 0, 0])
    }
}

/// Only the paths: a content may be a private key.
impl fmt::Debug for UnsavedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnsavedFiles").field(&self.paths()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::files::WatchedFiles;
    use std::sync::Arc;

    #[test]
    fn an_unsaved_file_is_read_in_place_of_the_one_on_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let unsaved = Arc::new(UnsavedFiles::default());
        unsaved.put(&path, b"1");
        let mut files = WatchedFiles::new(vec![path.clone()]).with_unsaved(Arc::clone(&unsaved));
        let read = |files: Vec<super::super::files::WatchedFile>| files[0].bytes.clone();
        assert_eq!(files.read().map(read).expect("in memory"), b"1");
        assert_eq!((files.look(), files.look()), (None, None));
        unsaved.put(&path, b"2");
        assert_eq!(files.look(), None, "not settled");
        assert_eq!(files.look().map(read).expect("changed"), b"2");
        // Written at last: nothing has changed.
        std::fs::write(&path, "2").expect("written");
        unsaved.remove(&path);
        assert_eq!((files.look(), files.look(), files.look()), (None, None, None));
        std::fs::write(&path, "33").expect("written");
        assert_eq!(files.look(), None);
        assert_eq!(files.look().map(read).expect("changed"), b"33");
        assert!(unsaved.is_empty());
        unsaved.put(&path, b"secret");
        assert!(!format!("{unsaved:?} {files:?}").contains("secret"), "no content is shown");
    }
}
