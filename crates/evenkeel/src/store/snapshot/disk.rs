//! The file that a snapshot lies in: read by whoever starts, replaced whole by whoever runs.
//!
//! A snapshot is written beside the file, forced to the disk and only then given its name. So at
//! any moment, also after a loss of power, there is one whole snapshot or none. What is in it:
//! `format`. Only the owner may read it: it holds the secret that keys are hashed with.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Collected before it is handed to the system.
const BUFFER_BYTES: usize = 1 << 18;
/// As many links as the system follows.
const LINKS_MAX: usize = 40;

/// Opens the snapshot; `None` if there is none.
///
/// # Errors
/// If it is there and cannot be opened, or is no plain file: a pipe would be waited for.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    if is_there(path)? { File::open(path).map(Some) } else { Ok(None) }
}

/// Whether there is a plain file.
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file that links at this path lead to, there or not: a link stays one, and leads to the
/// snapshot.
fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = folder(&path).join(next),
            // It is none.
            Err(_) => break,
        }
    }
    path
}

/// Replaces the snapshot by what `write` writes, and says how many bytes that is. If anything
/// fails, the old one stays.
///
/// # Errors
/// The first that came up.
pub fn replace(
    path: &Path,
    write: impl FnOnce(BufWriter<File>) -> io::Result<BufWriter<File>>,
) -> io::Result<u64> {
    // A device by that name would be replaced too.
    is_there(path)?;
    let path = followed(path);
    let aside = beside(&path, ".tmp");
    let result = written(&aside, write).and_then(|bytes| {
        fs::rename(&aside, &path)?;
        Ok(bytes)
    });
    match result {
        Ok(bytes) => {
            File::open(folder(&path))?.sync_all()?;
            Ok(bytes)
        }
        Err(error) => {
            // It may never have been there; and what failed is what is to be told.
            let _ = fs::remove_file(&aside);
            Err(error)
        }
    }
}

/// Puts a file that is not believed out of the way, so that somebody may look at it. Returns where
/// it lies then; one that lay there before is gone.
///
/// # Errors
/// If it cannot be moved, or is no plain file.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    is_there(path)?;
    let path = followed(path);
    let refused = beside(&path, ".refused");
    fs::rename(&path, &refused)?;
    Ok(refused)
}

fn written(
    aside: &Path,
    write: impl FnOnce(BufWriter<File>) -> io::Result<BufWriter<File>>,
) -> io::Result<u64> {
    match fs::remove_file(aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside)?;
    let file = write(BufWriter::with_capacity(BUFFER_BYTES, file))?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
