//! The only disk access of a replay: opens logs and writes the report.
//!
//! Logs may be compressed by gzip or zstd (`packed`), also in several concatenated pieces; the
//! first bytes decide, not the name. Lines longer than [`LINE_BYTES_MAX`] are skipped.

mod packed;

use packed::{GzipReader, ZstdReader};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// The size of the read buffer, in bytes.
const BUFFER_BYTES: usize = 256 * 1024;

/// The source of a log, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSource {
    File(PathBuf),
    /// Standard input, written as `-`.
    Standard,
}

impl LogSource {
    /// The source that an argument of the command line names.
    pub fn of(path: &Path) -> LogSource {
        match path.as_os_str().as_encoded_bytes() {
            b"-" => LogSource::Standard,
            _ => LogSource::File(path.to_owned()),
        }
    }

    pub fn name(&self) -> String {
        match self {
            LogSource::File(path) => path.display().to_string(),
            LogSource::Standard => "standard input".to_owned(),
        }
    }

    /// The size in bytes, if it is known.
    pub fn size(&self) -> Option<u64> {
        match self {
            LogSource::File(path) => fs::metadata(path).ok().map(|about| about.len()),
            LogSource::Standard => None,
        }
    }

    /// Opens the log; the bytes read from it are added to `count`.
    pub fn open(&self, count: &Arc<AtomicU64>) -> io::Result<LogLines> {
        let bytes: Box<dyn Read + Send> = match self {
            LogSource::File(path) => Box::new(File::open(path)?),
            LogSource::Standard => Box::new(io::stdin()),
        };
        LogLines::new(CountingReader { bytes, count: Arc::clone(count) })
    }
}

/// Writes a report, completely or not at all.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
}

/// A reader that counts the bytes read.
struct CountingReader {
    bytes: Box<dyn Read + Send>,
    count: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.count.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

pub struct LogLines {
    bytes: Box<dyn BufRead + Send>,
    line: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum LogLine<'a> {
    /// A whole line, without its line end.
    Whole(&'a [u8]),
    /// A line longer than [`LINE_BYTES_MAX`].
    TooLong,
}

impl LogLines {
    /// Makes the lines of bytes that may be compressed.
    pub fn new(bytes: impl Read + Send + 'static) -> io::Result<LogLines> {
        let mut bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
        let bytes: Box<dyn BufRead + Send> = match bytes.fill_buf()? {
            [0x1f, 0x8b, ..] => {
                Box::new(BufReader::with_capacity(BUFFER_BYTES, GzipReader::new(bytes)))
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Box::new(BufReader::with_capacity(BUFFER_BYTES, ZstdReader::new(bytes)))
            }
            _ => Box::new(bytes),
        };
        Ok(LogLines { bytes, line: Vec::new() })
    }

    /// The next line; `None` at the end.
    pub fn read(&mut self) -> io::Result<Option<LogLine<'_>>> {
        self.line.clear();
        let (mut any, mut too_long) = (false, false);
        loop {
            let read = self.bytes.fill_buf()?;
            if read.is_empty() {
                break;
            }
            any = true;
            let end = memchr::memchr(b'\n', read);
            let part = &read[..end.unwrap_or(read.len())];
            too_long |= self.line.len() + part.len() > LINE_BYTES_MAX;
            if !too_long {
                self.line.extend_from_slice(part);
            }
            let used = end.map_or(read.len(), |end| end + 1);
            self.bytes.consume(used);
            if end.is_some() {
                break;
            }
        }
        Ok(match (any, too_long) {
            (false, _) => None,
            (true, true) => Some(LogLine::TooLong),
            (true, false) => Some(LogLine::Whole(self.line.trim_ascii_end())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn lines(bytes: Vec<u8>) -> Vec<String> {
        let mut lines = LogLines::new(io::Cursor::new(bytes)).expect("it opens");
        let mut all = Vec::new();
        while let Some(line) = lines.read().expect("it is whole") {
            all.push(match line {
                LogLine::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                LogLine::TooLong => "too long".to_owned(),
            });
        }
        all
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text.as_bytes()).expect("memory");
        packed.finish().expect("memory")
    }

    #[test]
    fn lines_come_out_however_they_are_packed() {
        let (one, two) = ("a\nb\r\n", "\nc");
        let want = ["a", "b", "", "c"];
        assert_eq!(lines(format!("{one}{two}").into()), want);
        assert_eq!(lines([gzip(one), gzip(two)].concat()), want);
        let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3].to_vec();
        assert_eq!(lines([zstd(one), skipped, zstd(two)].concat()), want);
        assert!(lines(Vec::new()).is_empty());
    }

    #[test]
    fn long_lines_are_read_past() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        let longest = "y".repeat(LINE_BYTES_MAX);
        let text = format!("a\n{long}\nb\n{longest}\n{long}");
        assert_eq!(lines(text.into()), ["a", "too long", "b", &longest, "too long"]);
    }

    #[test]
    fn broken_packings_are_told() {
        let whole = gzip(&"some line or other\n".repeat(1_000));
        let mut lines = LogLines::new(io::Cursor::new(whole[..whole.len() / 2].to_vec()));
        let lines = lines.as_mut().expect("it opens");
        while let Ok(line) = lines.read() {
            assert!(line.is_some(), "the end was not noticed");
        }
    }

    #[test]
    fn fuzz_packed_logs() {
        evenkeel_fuzz::fuzz().with_type::<(u8, Vec<u8>)>().for_each(|(kind, bytes)| {
            let magic: &[u8] = match kind % 3 {
                0 => &[0x1f, 0x8b, 8],
                1 => &[0x28, 0xb5, 0x2f, 0xfd],
                _ => &[],
            };
            let all = [magic, bytes].concat();
            if let Ok(mut lines) = LogLines::new(io::Cursor::new(all)) {
                let mut count = 0;
                while let Ok(Some(_)) = lines.read() {
                    count += 1;
                    if count > 10_000 {
                        break;
                    }
                }
            }
        });
    }
}
