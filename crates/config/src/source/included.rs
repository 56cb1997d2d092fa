//! Files that a configuration names and that are read with it, such as groups and pages.
//!
//! A change of such a file is a change of the configuration, so it is checked as a whole before
//! anything is applied.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A file that was read with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncludedFile {
    /// The path as the configuration has it.
    pub path: PathBuf,
    /// A hash of its content, which is only compared within this process.
    pub digest: u64,
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// A sentence about a file that cannot be read, is too large, or is no regular file; reading a pipe
/// may block forever.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<(Vec<u8>, IncludedFile), String> {
    let bytes = bytes(path, bytes_max).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Ok((bytes, IncludedFile { path: path.to_owned(), digest: hasher.finish() }))
}

fn bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("it has more than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}
