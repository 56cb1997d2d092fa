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
    /// What stands there is not what somebody else asks for.
    #[error("{0} must hold `user:password` or a token, on one line of at most 1024 bytes")]
    Credentials(PathBuf),
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

/// What somebody else wants to know of us: `user:password`, or a token, from the file at `path`.
/// How strong it must be is their business.
///
/// # Errors
/// [`SecretFault`] if it cannot be read or is no line of text.
pub fn credentials(path: &Path) -> Result<String, SecretFault> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|why| SecretFault::File { path: path.to_owned(), why })?;
    let line = text.trim();
    let good = !line.is_empty() && line.len() <= 1024 && !line.contains(char::is_control);
    good.then(|| line.to_owned()).ok_or_else(|| SecretFault::Credentials(path.to_owned()))
}

/// The text of an authority's certificate at `path`, without the space in it: what all who trust it
/// have alike.
///
/// # Errors
/// [`SecretFault`] if it cannot be read or is no text.
pub fn authority(path: &Path) -> Result<String, SecretFault> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|why| SecretFault::File { path: path.to_owned(), why })?;
    Ok(text.split_whitespace().collect())
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

    #[test]
    fn credentials_are_one_line() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            credentials(file.path()).map_err(|fault| fault.to_string())
        };
        assert_eq!(read("user:pass word\n"), Ok("user:pass word".to_owned()));
        for wrong in ["", "  \n", "a\nb", &"x".repeat(1025)] {
            assert!(read(wrong).expect_err("refused").contains("`user:password` or a token"));
        }
    }
}
