//! Decompresses gzip and zstd as far as possible.
//!
//! A log may be truncated: by a full disk, by an interrupted copy, or because it is still being
//! written. The reader first returns everything that was packed before the cut, and then an error
//! with the reason in words for people. The zstd decoder keeps back the last part of its output,
//! because later data may refer to it; if no more data follows, the reader gives the decoder an
//! artificial end.

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::error::Error;
use std::io::{self, BufRead, ErrorKind, Read};

/// An empty last block, and a checksum that is not verified.
const EMPTY_LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Why decompression stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// The file ends too early.
    #[error(
        "its {0} data ends early (or is still being written): only the part before that is counted"
    )]
    Cut(&'static str),
    /// The data is invalid.
    #[error("its {0} data is damaged here: only the part before that is counted")]
    Damaged(&'static str),
    /// The decoder would need more memory than is allowed.
    #[error(
        "it was compressed by zstd with a window of {0} MiB, and at most 128 MiB are supported; \
         decompress it first: zstd -dc --long=31 FILE | evenkeel replay -"
    )]
    Window(u64),
    /// The data needs a dictionary file, which is not available.
    #[error(
        "it was compressed by zstd with a dictionary; decompress it first: zstd -dc -D DICTIONARY \
         FILE"
    )]
    Dictionary,
}

impl From<UnpackError> for io::Error {
    fn from(fault: UnpackError) -> io::Error {
        io::Error::other(fault)
    }
}

pub struct GzipReader<R>(MultiGzDecoder<R>);

impl<R: BufRead> GzipReader<R> {
    pub fn new(source: R) -> GzipReader<R> {
        GzipReader(MultiGzDecoder::new(source))
    }
}

impl<R: BufRead> Read for GzipReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|why| match why.kind() {
            ErrorKind::UnexpectedEof => UnpackError::Cut("gzip").into(),
            ErrorKind::InvalidInput | ErrorKind::InvalidData => UnpackError::Damaged("gzip").into(),
            _ => why,
        })
    }
}

/// A reader that decompresses zstd, frame by frame.
pub struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    /// Whether the decoder is inside a frame.
    open: bool,
    /// The error to return after the data that the decoder still holds.
    fault: Option<io::Error>,
}

impl<R: BufRead> ZstdReader<R> {
    pub fn new(source: R) -> ZstdReader<R> {
        ZstdReader { source, decoder: FrameDecoder::new(), open: false, fault: None }
    }

    /// Begins the next frame that has content; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => {
                    self.open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.source.by_ref().take(u64::from(length));
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(why) => return Err(fault(&why)),
            }
        }
        Ok(false)
    }

    /// Decompresses one more block. If that fails, the frame ends with the data before it.
    fn unpack(&mut self) {
        let some = BlockDecodingStrategy::UptoBlocks(1);
        let Err(why) = self.decoder.decode_blocks(&mut self.source, some) else { return };
        self.fault = Some(fault(&why));
        let all = BlockDecodingStrategy::All;
        if self.decoder.decode_blocks(&mut &EMPTY_LAST_BLOCK[..], all).is_err() {
            self.open = false;
        }
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.open && !self.begin()? {
                return Ok(0);
            }
            while self.open && self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.unpack();
            }
            if !self.open {
                continue;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.open = false;
        }
    }
}

/// The error for people that corresponds to a decoder's error; read errors are passed on.
fn fault(why: &FrameDecoderError) -> io::Error {
    match why {
        FrameDecoderError::WindowSizeTooBig { requested, .. } => {
            return UnpackError::Window(requested >> 20).into();
        }
        FrameDecoderError::DictNotProvided { .. } => return UnpackError::Dictionary.into(),
        _ => {}
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(why);
    while let Some(error) = cause {
        if let Some(read) = error.downcast_ref::<io::Error>() {
            return match read.kind() {
                ErrorKind::UnexpectedEof => UnpackError::Cut("zstd").into(),
                kind => io::Error::new(kind, read.to_string()),
            };
        }
        cause = error.source();
    }
    UnpackError::Damaged("zstd").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::{Cursor, Write};

    /// Lines that compress badly, so that there are many blocks.
    fn text() -> Vec<u8> {
        let mut chance = evenkeel_core::sim::random::SimRandom::new(7, 0);
        let mut text = Vec::new();
        while text.len() < 1 << 20 {
            writeln!(text, "{:x} {:x}", chance.bits(), chance.bits()).expect("memory");
        }
        text
    }

    /// All decompressed data, and the error at its end.
    fn unpacked(mut packed: impl Read) -> (Vec<u8>, Option<String>) {
        let (mut all, mut buffer) = (Vec::new(), [0; 4_096]);
        loop {
            match packed.read(&mut buffer) {
                Ok(0) => return (all, None),
                Ok(read) => all.extend_from_slice(&buffer[..read]),
                Err(why) => return (all, Some(why.to_string())),
            }
        }
    }

    #[test]
    fn what_was_packed_before_a_cut_comes_out_and_then_why_there_is_no_more() {
        let text = text();
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).expect("memory");
        let gzip = gzip.finish().expect("memory");
        for parts in [1, 2, 3, 5, 9] {
            let cut = |packed: &[u8]| packed[..packed.len() * parts / 10].to_vec();
            let (all, why) = unpacked(ZstdReader::new(Cursor::new(cut(&zstd))));
            // Everything except the content of the block that was cut.
            let least = (text.len() * parts / 10).saturating_sub(2 * 128 * 1024);
            assert!(all.len() >= least && text.starts_with(&all), "{parts}: {}", all.len());
            assert_eq!(why, Some(UnpackError::Cut("zstd").to_string()), "{parts}");
            let (all, why) = unpacked(GzipReader::new(Cursor::new(cut(&gzip))));
            assert!(all.len() >= least && text.starts_with(&all), "{parts}: {}", all.len());
            assert_eq!(why, Some(UnpackError::Cut("gzip").to_string()), "{parts}");
        }
        assert_eq!(unpacked(ZstdReader::new(Cursor::new(zstd))), (text.clone(), None));
        assert_eq!(unpacked(GzipReader::new(Cursor::new(gzip))), (text, None));
    }

    #[test]
    fn damage_is_told_in_words() {
        let text = text();
        let mut zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let cut = zstd.len();
        zstd.extend(b"something else behind it");
        let (all, why) = unpacked(ZstdReader::new(Cursor::new(zstd.clone())));
        assert_eq!((all, why), (text, Some(UnpackError::Damaged("zstd").to_string())));
        // Cuts at any length and any damage end with an error in words, without a panic.
        for at in [4, 5, 9, 100, cut / 2] {
            let mut broken = zstd[..cut].to_vec();
            broken[at..].iter_mut().step_by(3).for_each(|byte| *byte ^= 0x5a);
            let (_, why) = unpacked(ZstdReader::new(Cursor::new(broken)));
            assert!(why.is_none_or(|why| !why.contains(['{', '('])), "{at}");
        }
        // A window of 2 GiB.
        let large = [0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1, 0, 0];
        let (_, why) = unpacked(ZstdReader::new(Cursor::new(large)));
        assert_eq!(why, Some(UnpackError::Window(2_048).to_string()));
    }
}
