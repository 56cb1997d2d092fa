//! The file of a snapshot: read at the start, and replaced as a whole while the process runs.
//!
//! A snapshot is written beside the file, forced to the disk and then renamed. So at any moment,
//! also after a power failure, there is either one complete snapshot or none. The contents:
//! `format`. The file is readable by its owner only, because it holds the secret seed of the keys'
//! hashes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The size of the write buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 18;
/// The number of symbolic links to follow, the same as the kernel's.
const LINKS_MAX: usize = 40;

/// Opens the snapshot; `None` if the file does not exist.
///
/// # Errors
/// The file cannot be opened, or is not a regular file. Opening a pipe would block.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    if is_there(path)? { File::open(path).map(Some) } else { Ok(None) }
}

/// Whether the path leads to a regular file. Any other kind of file is an error.
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The path behind symbolic links, whether a file exists there or not. The links stay, and lead to
/// the new snapshot.
fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = folder(&path).join(next),
            // The path is not a link.
            Err(_) => break,
        }
    }
    path
}

/// Replaces the snapshot by the output of `write`, and returns its size in bytes. If anything
/// fails, the old snapshot stays.
///
/// # Errors
/// The first error of the system or of `write`.
pub fn replace(
    path: &Path,
    write: impl FnOnce(BufWriter<File>) -> io::Result<BufWriter<File>>,
) -> io::Result<u64> {
    // Checked because the rename would also replace a device with this name.
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
            // The file may not exist, and the error to report is the first one.
            let _ = fs::remove_file(&aside);
            Err(error)
        }
    }
}

/// Moves a refused snapshot aside, so that an operator can examine it. Returns its new path. A file
/// that was moved there earlier is overwritten.
///
/// # Errors
/// The file cannot be moved, or is not a regular file.
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
