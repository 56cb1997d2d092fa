//! The bytes of a file about networks: unpacked, and refused with the reason if they cannot be one.
//!
//! Publishers pack such files with gzip. What is often taken for the file, an archive around it or
//! a web page in its place, gets an error of its own.

use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// Maximum size of a database, in bytes, as it is and unpacked.
pub const DATABASE_BYTES_MAX: u64 = 256 << 20;
/// Maximum size of an address list, in bytes, as it is and unpacked.
pub const LIST_BYTES_MAX: u64 = 16 << 20;

/// Where the name of the format is in a tar archive.
const TAR_MARK: (usize, &[u8]) = (257, b"ustar");

/// What is wrong with a file about networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkFileError {
    /// The line, counted from 1, if the file has lines.
    pub line: Option<usize>,
    /// The error.
    pub what: String,
}

impl NetworkFileError {
    /// An error of the whole file.
    pub(super) fn whole(what: impl Into<String>) -> NetworkFileError {
        NetworkFileError { line: None, what: what.into() }
    }

    /// An error of a line, counted from 1.
    pub(super) fn line(line: usize, what: impl Into<String>) -> NetworkFileError {
        NetworkFileError { line: Some(line), what: what.into() }
    }
}

/// The line and a colon, if there is one, and the error. After the path and a colon this is the
/// usual form of an error in a file.
impl fmt::Display for NetworkFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.what)
    }
}

impl std::error::Error for NetworkFileError {}

/// The bytes of a file, unpacked if they are packed with gzip.
pub(super) fn unpacked(bytes: &[u8], bytes_max: u64) -> Result<Cow<'_, [u8]>, NetworkFileError> {
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        let mut reader = MultiGzDecoder::new(bytes).take(bytes_max + 1);
        reader
            .read_to_end(&mut unpacked)
            .map_err(|why| NetworkFileError::whole(format!("gzip cannot unpack it: {why}")))?;
        if u64::try_from(unpacked.len()).unwrap_or(u64::MAX) > bytes_max {
            let what = format!("it has more than {bytes_max} bytes when unpacked");
            return Err(NetworkFileError::whole(what));
        }
        Cow::Owned(unpacked)
    } else {
        Cow::Borrowed(bytes)
    };
    match unusable(&bytes) {
        Some(what) => Err(NetworkFileError::whole(what)),
        None => Ok(bytes),
    }
}

fn unusable(bytes: &[u8]) -> Option<&'static str> {
    let start = bytes.trim_ascii_start();
    match () {
        () if start.is_empty() => Some("the file is empty"),
        () if bytes.get(TAR_MARK.0..).is_some_and(|rest| rest.starts_with(TAR_MARK.1)) => {
            Some("it is a tar archive; unpack it and name the file in it")
        }
        () if bytes.starts_with(b"PK\x03\x04") => {
            Some("it is a ZIP archive; unpack it and name the file in it")
        }
        () if start.starts_with(b"<") => Some("it is a web page; the download has failed"),
        () => None,
    }
}

/// The lines of a text with their numbers, without empty ones and comments, which begin with `#`.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end());
    let lines = lines.enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
}

/// A piece of a file for an error message: short, and without control characters.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]);
    text.escape_debug().to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use evenkeel_fuzz::fuzz;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    pub fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).expect("packed");
        encoder.finish().expect("packed")
    }

    fn error(bytes: &[u8]) -> String {
        unpacked(bytes, 1_000).expect_err("refused").to_string()
    }

    #[test]
    fn files_are_unpacked_up_to_a_size() {
        assert_eq!(&*unpacked(b"text", 1_000).expect("text"), b"text");
        assert_eq!(&*unpacked(&packed(b"text"), 1_000).expect("text"), b"text");
        let two = [packed(b"one\n"), packed(b"two\n")].concat();
        assert_eq!(&*unpacked(&two, 1_000).expect("text"), b"one\ntwo\n");
        assert_eq!(unpacked(&packed(&[b'x'; 1_000]), 1_000).expect("small").len(), 1_000);
        let bomb = packed(&vec![b'x'; 1_000_000]);
        assert_eq!(error(&bomb), " it has more than 1000 bytes when unpacked");
        let cut = packed(b"some text");
        assert!(error(&cut[..cut.len() - 9]).contains("gzip cannot unpack it"));
    }

    #[test]
    fn what_is_often_taken_for_the_file_is_named() {
        let mut tar = vec![b'x'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        for (bytes, what) in [
            (&b""[..], "empty"),
            (b" \n", "empty"),
            (&packed(b""), "empty"),
            (&packed(&tar), "tar archive"),
            (b"PK\x03\x04..", "ZIP archive"),
            (b"\n<!DOCTYPE html>", "web page"),
        ] {
            assert!(error(bytes).contains(what), "{what}");
        }
    }

    #[test]
    fn comments_and_empty_lines_are_left_out() {
        let text = b"# list\r\n\r\none\r\n two \n";
        let lines: Vec<_> = lines(text).collect();
        assert_eq!(lines, [(3, &b"one"[..]), (4, b" two")]);
    }

    #[test]
    fn fuzz_packed_network_files() {
        let whole = packed(b"10.0.0.0\t10.0.0.255\t64500\tDE\tEXAMPLE\n");
        fuzz().for_each(|bytes: &[u8]| {
            let mut mixed = whole.clone();
            for pair in bytes.chunks_exact(2) {
                let at = usize::from(pair[0]) % mixed.len();
                mixed[at] = pair[1];
            }
            let _ = unpacked(&mixed, 1_000);
            let _ = unpacked(bytes, 1_000);
        });
    }
}
