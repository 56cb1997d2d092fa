//! Reads a secret that stands in a file of its own, so that it stands in no configuration.
//!
//! It is never shown, logged or put into an error. Who needs it and compares it: the doors.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Lengths of a token that is neither guessed nor absurd, in bytes.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=1024;

/// Why there is no token to be had.
#[derive(Debug, thiserror::Error)]
pub enum SecretFault {
    /// The file cannot be read.
    #[error("cannot read the token in {path}: {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// What stands there is no secret.
    #[error("{0} must hold a token of 16 to 1024 visible characters")]
    Weak(PathBuf),
}

/// The token in the file at `path`, without the space around it.
///
/// # Errors
/// [`SecretFault`] if it cannot be read or is too short, too long or not plain text.
pub fn token(path: &Path) -> Result<String, SecretFault> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|why| SecretFault::File { path: path.to_owned(), why })?;
    let token = text.trim();
    let visible = token.bytes().all(|byte| byte.is_ascii_graphic());
    if visible && TOKEN_BYTES.contains(&token.len()) {
        Ok(token.to_owned())
    } else {
        Err(SecretFault::Weak(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_visible_and_long_enough() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            token(file.path()).ok()
        };
        assert_eq!(read(" 0123456789abcdef\n").as_deref(), Some("0123456789abcdef"));
        for weak in ["", "short", "0123456789 abcdef", "0123456789abcde\u{e4}", &"x".repeat(1025)] {
            assert_eq!(read(weak), None, "{weak}");
        }
        assert!(token(Path::new("/nonexistent/token")).is_err());
    }
}
