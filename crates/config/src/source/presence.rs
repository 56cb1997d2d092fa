//! Tells in the log when a file that is followed disappears, and when it is back.
//!
//! Programs that replace a file may remove it first, so a file counts as missing when two looks
//! in a row did not find it. Its content stays in use; what that means is decided by the caller.

use std::path::{Path, PathBuf};

/// Which of the files that are followed are missing.
#[derive(Clone, Debug, Default)]
pub(super) struct FilePresence {
    /// The files that the last look did not find.
    absent: Vec<PathBuf>,
    /// The files that were told to be missing.
    told: Vec<PathBuf>,
}

impl FilePresence {
    /// Logs changes. Must be called at each look with all files and whether they are there.
    pub fn tell<'p>(&mut self, files: impl Iterator<Item = (&'p Path, bool)>) {
        for (path, is_there) in self.changes(files) {
            let file = path.display();
            match is_there {
                true => tracing::info!(%file, "file is back"),
                false => tracing::warn!(
                    %file,
                    "file is missing; what it contained stays in use, and a start would fail"
                ),
            }
        }
    }

    /// The files that have disappeared since the last call, and those that are back.
    fn changes<'p>(
        &mut self,
        files: impl Iterator<Item = (&'p Path, bool)>,
    ) -> Vec<(PathBuf, bool)> {
        let (mut changes, mut absent) = (Vec::new(), Vec::new());
        let told = std::mem::take(&mut self.told);
        for (path, is_there) in files {
            let was_told = told.iter().any(|told| told == path);
            let is_missing = !is_there && self.absent.iter().any(|absent| absent == path);
            if is_there && was_told || is_missing && !was_told {
                changes.push((path.to_owned(), is_there));
            }
            if !is_there {
                absent.push(path.to_owned());
            }
            if is_missing {
                self.told.push(path.to_owned());
            }
        }
        self.absent = absent;
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_once_to_be_missing_and_once_to_be_back() {
        let mut presence = FilePresence::default();
        let mut look = |a: bool, b: bool| {
            let files = [(Path::new("a"), a), (Path::new("b"), b)];
            presence.changes(files.into_iter())
        };
        let of = |name: &str, is_there| vec![(PathBuf::from(name), is_there)];
        assert_eq!(look(true, true), []);
        assert_eq!(look(true, false), [], "it may be about to be replaced");
        assert_eq!(look(true, true), []);
        assert_eq!(look(true, false), []);
        assert_eq!(look(false, false), of("b", false));
        assert_eq!(look(false, false), of("a", false));
        assert_eq!(look(false, false), []);
        assert_eq!(look(false, true), of("b", true));
        assert_eq!(look(true, true), of("a", true));
        assert_eq!(look(true, true), []);
    }
}
