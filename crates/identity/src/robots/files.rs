//! The files of robots: address lists and key sets, each followed by itself.
//!
//! A file that is removed, cannot be read or is faulty keeps its last content, and the other files
//! are followed as before: a list that cannot be downloaded must not keep a stolen key in use.
//! [`WatchedFiles`] reports files that are missing or cannot be read.

use crate::networks::address_list::AddressList;
use crate::networks::file_status::NetworkFileNote;
use crate::networks::{LIST_BYTES_MAX, NetworkFileError};
use crate::signature::{KeyFault, RobotKey};
use evenkeel_config::source::files::{FileReadError, WatchedFile, WatchedFiles};
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

/// A list of addresses.
#[derive(Default)]
pub(super) struct RobotList {
    pub addresses: AddressList,
    pub note: NetworkFileNote,
}

/// A file with its last good content.
pub(super) struct RobotFile<T> {
    files: WatchedFiles,
    pub content: T,
}

/// The contents of a robot's file.
pub(super) trait RobotFileContent: Default {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// The content is invalid.
    fn of(file: &WatchedFile) -> Result<Self, RobotFileError>;
}

impl RobotFileContent for Arc<RobotList> {
    fn of(file: &WatchedFile) -> Result<Arc<RobotList>, RobotFileError> {
        let read = AddressList::parse(&file.bytes);
        let addresses =
            read.map_err(|why| RobotFileError::List { path: file.path.clone(), why })?;
        let note = NetworkFileNote::of_list(&addresses, file.modified);
        Ok(Arc::new(RobotList { addresses, note }))
    }
}

impl RobotFileContent for Vec<RobotKey> {
    fn of(file: &WatchedFile) -> Result<Vec<RobotKey>, RobotFileError> {
        let read = RobotKey::read_set(&file.bytes);
        read.map_err(|why| RobotFileError::Keys { path: file.path.clone(), why })
    }
}

impl<T: RobotFileContent> RobotFile<T> {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read or is invalid.
    pub fn load(path: &Path) -> Result<RobotFile<T>, RobotFileError> {
        let mut files = WatchedFiles::new(vec![path.to_owned()]).with_bytes_max(LIST_BYTES_MAX);
        let content = files.read()?.first().map(T::of).transpose()?.unwrap_or_default();
        Ok(RobotFile { files, content })
    }

    /// Takes the content of the file if it has changed and is good. Returns whether it did. Must be
    /// called once a second.
    pub fn look(&mut self) -> bool {
        let Some(files) = self.files.look() else { return false };
        let Some(file) = files.first() else { return false };
        match T::of(file) {
            Ok(content) => {
                self.content = content;
                let file = file.path.display();
                tracing::info!(target: "evenkeel::robots", %file, "file of a robot reloaded");
                true
            }
            Err(error) => {
                tracing::error!(
                    target: "evenkeel::robots", %error,
                    "file of a robot refused; the previous one stays in use"
                );
                false
            }
        }
    }
}
