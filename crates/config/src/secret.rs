//! Reads secrets from files of their own, so that they are not part of a configuration.
//!
//! A secret is never shown, logged or put into an error. The doors use and compare it.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Allowed length of a token, in bytes: long enough not to be guessed, and not excessive.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=1024;

/// Maximum number of secrets in a file: the one in use, and those that are being replaced.
pub const SECRETS_MAX: usize = 4;

/// Error while reading a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the token in {path}: {why}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// The file does not contain a valid token.
    #[error("{0} must hold a token of 16 to 1024 visible characters")]
    Weak(PathBuf),
    /// The file does not contain valid secrets.
    #[error("{0} must hold one to four secrets of 16 to 1024 visible characters, one on each line")]
    Several(PathBuf),
    /// The file does not contain valid credentials for another service.
    #[error("{0} must hold `user:password` or a token, on one line of at most 1024 bytes")]
    Credentials(PathBuf),
}

/// Reads the token in the file at `path`, without surrounding white space.
///
/// # Errors
/// [`SecretError`] if the file cannot be read, or if the token is too short, too long or not
/// visible ASCII.
pub fn token(path: &Path) -> Result<String, SecretError> {
    let text = text(path)?;
    let token = text.trim();
    is_token(token).then(|| token.to_owned()).ok_or_else(|| SecretError::Weak(path.to_owned()))
}

/// The secrets in `bytes`, the content of the file at `path`: one on each line, without surrounding
/// white space, at least one and at most [`SECRETS_MAX`]. Empty lines are skipped.
///
/// # Errors
/// [`SecretError::Several`] if there are none or too many, or one is too short, too long or not
/// visible ASCII.
pub fn several<'b>(path: &Path, bytes: &'b [u8]) -> Result<Vec<&'b str>, SecretError> {
    let lines = str::from_utf8(bytes).unwrap_or_default().lines().map(str::trim);
    let secrets: Vec<&str> = lines.filter(|line| !line.is_empty()).take(SECRETS_MAX + 1).collect();
    let good = (1..=SECRETS_MAX).contains(&secrets.len()) && secrets.iter().all(|s| is_token(s));
    good.then_some(secrets).ok_or_else(|| SecretError::Several(path.to_owned()))
}

/// Whether this is visible ASCII of a possible length.
fn is_token(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic()) && TOKEN_BYTES.contains(&text.len())
}

/// Reads credentials for another service from the file at `path`: `user:password` or a token. That
/// service decides how strong they must be.
///
/// # Errors
/// [`SecretError`] if the file cannot be read or is not one line of text.
pub fn credentials(path: &Path) -> Result<String, SecretError> {
    let text = text(path)?;
    let line = text.trim();
    let good = !line.is_empty() && line.len() <= 1024 && !line.contains(char::is_control);
    good.then(|| line.to_owned()).ok_or_else(|| SecretError::Credentials(path.to_owned()))
}

/// Reads the PEM text of an authority's certificate at `path`, without any white space. All
/// instances that trust this authority get the same text.
///
/// # Errors
/// [`SecretError`] if the file cannot be read or is not text.
pub fn authority(path: &Path) -> Result<String, SecretError> {
    Ok(text(path)?.split_whitespace().collect())
}

fn text(path: &Path) -> Result<String, SecretError> {
    std::fs::read_to_string(path).map_err(|why| SecretError::File { path: path.to_owned(), why })
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
    fn several_secrets_have_a_line_each() {
        let read = |text: &str| {
            let read = several(Path::new("/s"), text.as_bytes());
            read.map(|secrets| secrets.join(",")).map_err(|error| error.to_string())
        };
        let (one, two) = ("0123456789abcdef", "fedcba9876543210");
        assert_eq!(read(one), Ok(one.to_owned()));
        assert_eq!(read(&format!("\n {one} \r\n\n{two}\n")), Ok(format!("{one},{two}")));
        assert!(read(&format!("{one}\n").repeat(4)).is_ok());
        let five = format!("{one}\n").repeat(5);
        for weak in ["", "\n", "short", &format!("{one}\nshort"), "0123456789 abcdef", &five] {
            assert!(
                read(weak).expect_err("refused").contains("/s must hold one to four"),
                "{weak}"
            );
        }
        assert!(several(Path::new("/s"), b"\xff0123456789abcdef").is_err());
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
