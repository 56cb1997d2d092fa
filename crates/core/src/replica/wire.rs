//! The binary format of frames: a head that every frame has, then the content of its kind.
//!
//! Numbers are little-endian or variable-length (seven bits a byte, the lowest first). A frame is
//! parsed completely before any of it takes effect, so a broken frame changes nothing. Each group
//! of entries names its limit by a fingerprint: no frame depends on another, and any frame may be
//! lost. The layout is specified in docs/protocol/peers.md.

use super::window::SequenceWindow;
use crate::key::{KeyHash, NAME_BYTES_MAX};
use crate::units::Time;
use alloc::vec::Vec;
use core::fmt;

/// The version of this format. Frames of another version are refused.
pub const PROTOCOL_VERSION: u8 = 1;
/// Length of the head in bytes.
pub const HEAD_BYTES: usize = 26;
/// Maximum length before the groups of a report, in bytes.
pub const REPORT_BYTES: usize = HEAD_BYTES + 6 * 10;
/// Maximum length before the entries of a group, in bytes.
pub const GROUP_BYTES: usize = 8 + 3 * 10;
/// Maximum length of an entry, in bytes.
pub const ENTRY_BYTES: usize = 8 + 10;
/// Maximum length of a frame that is parsed, in bytes.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a text, in bytes: names of instances, limits and keys.
pub const TEXT_BYTES_MAX: usize = 120;

const _: () = {
    assert!(NAME_BYTES_MAX <= TEXT_BYTES_MAX, "the name of a key fits");
    assert!(REPORT_BYTES + GROUP_BYTES + ENTRY_BYTES <= FRAME_BYTES_MAX);
};

/// The reason why a frame is refused. The frame has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFrameError {
    /// The frame has this version of the protocol, which is not the version of this instance.
    Version(u8),
    /// The frame is truncated, has excess bytes, or contains an invalid number.
    Broken,
    /// The frame is longer than `FRAME_BYTES_MAX`.
    Long,
    /// The frame arrived on a link without a hello, or from another sender than the hello's.
    Stranger,
    /// The frame has the identity of this instance, but not its life: two instances share an
    /// identity.
    Twin,
    /// The frame comes from an earlier life of its instance.
    Stale,
    /// The maximum number of instances is reached.
    Full,
    /// The time in the frame is too far from now: the frame is old, or the clocks differ.
    Time,
    /// The instance has sent more frames in a period than a peer may send.
    Flood,
}

impl fmt::Display for PeerFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerFrameError::Version(version) => {
                return write!(
                    f,
                    "it uses version {version} of the protocol, not {PROTOCOL_VERSION}"
                );
            }
            PeerFrameError::Broken => "it is malformed",
            PeerFrameError::Long => "it is too long",
            PeerFrameError::Stranger => "its sender is missing or differs from the announced one",
            PeerFrameError::Twin => "two instances have the same identity",
            PeerFrameError::Stale => "it was sent before its instance restarted",
            PeerFrameError::Full => "there are more instances than `nodes_max`",
            PeerFrameError::Time => {
                "it is more than a minute old, or the clocks of the machines differ"
            }
            PeerFrameError::Flood => "its instance sends too many messages",
        })
    }
}

impl core::error::Error for PeerFrameError {}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFrameKind {
    /// The identity and settings of the sender.
    Hello = 1,
    /// Some of the sender's limits.
    Limits = 2,
    /// Charges of one period.
    Report = 3,
    /// The reports that the sender has seen.
    Ack = 4,
    /// A request for the present state.
    Want = 5,
    /// The reports that the following state contains.
    Seen = 6,
    /// A part of the state.
    State = 7,
    /// Readable names of keys.
    Names = 8,
    /// Messages about a queue that instances share.
    Queue = 9,
}

impl PeerFrameKind {
    const ALL: [PeerFrameKind; 9] = [
        PeerFrameKind::Hello,
        PeerFrameKind::Limits,
        PeerFrameKind::Report,
        PeerFrameKind::Ack,
        PeerFrameKind::Want,
        PeerFrameKind::Seen,
        PeerFrameKind::State,
        PeerFrameKind::Names,
        PeerFrameKind::Queue,
    ];
}

/// The sender of a frame: an instance in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerFrameSender {
    /// Identity of the instance.
    pub node: u64,
    /// Number of its life; later lives have greater numbers.
    pub life: u64,
}

/// The fields at the start of every frame.
#[derive(Clone, Copy, Debug)]
pub struct PeerFrameHead {
    /// The kind of the content.
    pub kind: PeerFrameKind,
    /// The sender of the frame.
    pub sender: PeerFrameSender,
    /// The time in the frame by the sender's clock, to the millisecond.
    pub at: Time,
}

/// Nanoseconds in a millisecond.
pub const NANOS_PER_MILLI: u64 = 1_000_000;

/// Parses a frame from its start.
#[derive(Clone, Copy)]
pub struct PeerFrameReader<'a>(&'a [u8]);

impl<'a> PeerFrameReader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> PeerFrameReader<'a> {
        PeerFrameReader(bytes)
    }

    /// Reads the head of a frame, and checks its length and version.
    pub fn head(&mut self) -> Result<PeerFrameHead, PeerFrameError> {
        if self.0.len() > FRAME_BYTES_MAX {
            return Err(PeerFrameError::Long);
        }
        let version = self.byte()?;
        if version != PROTOCOL_VERSION {
            return Err(PeerFrameError::Version(version));
        }
        let kind = self.byte()?;
        let kind = PeerFrameKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let sender = PeerFrameSender { node: self.word()?, life: self.word()? };
        let at = Time(self.word()?.saturating_mul(NANOS_PER_MILLI));
        Ok(PeerFrameHead { kind: kind.ok_or(PeerFrameError::Broken)?, sender, at })
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Result<u8, PeerFrameError> {
        let (first, rest) = self.0.split_first().ok_or(PeerFrameError::Broken)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads a little-endian number of eight bytes.
    pub fn word(&mut self) -> Result<u64, PeerFrameError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(PeerFrameError::Broken)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// Reads a number of variable length, at most ten bytes.
    pub fn number(&mut self) -> Result<u64, PeerFrameError> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                return Err(PeerFrameError::Broken);
            }
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(PeerFrameError::Broken)
    }

    /// Reads a number of variable length that must not exceed `max`.
    pub fn at_most(&mut self, max: u64) -> Result<u64, PeerFrameError> {
        self.number().and_then(|n| if n <= max { Ok(n) } else { Err(PeerFrameError::Broken) })
    }

    /// Reads a text: its length in bytes, then UTF-8.
    pub fn text(&mut self) -> Result<&'a str, PeerFrameError> {
        let length = self.at_most(TEXT_BYTES_MAX as u64)? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(PeerFrameError::Broken)?;
        self.0 = rest;
        core::str::from_utf8(text).map_err(|_| PeerFrameError::Broken)
    }

    /// Reads a key hash.
    pub fn key(&mut self) -> Result<KeyHash, PeerFrameError> {
        let bits = self.word()?;
        let key = KeyHash::from_bits(bits);
        if key.bits() == bits { Ok(key) } else { Err(PeerFrameError::Broken) }
    }

    /// Reads a set of seen numbers in the form of [`PeerFrameWriter::window`].
    pub fn window(&mut self) -> Result<SequenceWindow, PeerFrameError> {
        let mut window = SequenceWindow::starting_at(self.number()?);
        let mut at = window.base();
        for _ in 0..self.at_most(super::window::RANGES_MAX as u64)? {
            let start = at.checked_add(self.number()?).ok_or(PeerFrameError::Broken)?;
            let end = start.checked_add(self.number()?).ok_or(PeerFrameError::Broken)?;
            if start == at || end == start {
                return Err(PeerFrameError::Broken);
            }
            window.push(start, end);
            at = end;
        }
        Ok(window)
    }

    /// Checks that no bytes are left.
    pub fn end(self) -> Result<(), PeerFrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(PeerFrameError::Broken) }
    }

    /// Whether no bytes are left.
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the rest of the frame as groups, and checks every entry.
    pub fn groups(self) -> Result<ChargeEntries<'a>, PeerFrameError> {
        let mut reader = self;
        while !reader.is_done() {
            let group = reader.group()?;
            for _ in 0..group.count {
                reader.key()?;
                reader.number()?;
            }
        }
        Ok(ChargeEntries { reader: self, group: ChargeGroupHead::default() })
    }

    fn group(&mut self) -> Result<ChargeGroupHead, PeerFrameError> {
        let limit = self.word()?;
        let (low, high) = (self.number()?, self.number()?);
        let context = u128::from(high) << 64 | u128::from(low);
        Ok(ChargeGroupHead { limit, context, count: self.number()? })
    }
}

/// The head of a group of entries.
#[derive(Clone, Copy, Default)]
struct ChargeGroupHead {
    limit: u64,
    context: u128,
    count: u64,
}

/// An amount for a key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeEntry {
    /// The fingerprint of the limit.
    pub limit: u64,
    /// Additional identification of the bucket, such as the window; zero for most limits.
    pub context: u128,
    /// The hash of the key.
    pub key: KeyHash,
    /// The amount: in the unit of the limit in a report, in nano-units in a state.
    pub amount: u64,
}

/// An iterator over entries that have been checked.
#[derive(Clone)]
pub struct ChargeEntries<'a> {
    reader: PeerFrameReader<'a>,
    group: ChargeGroupHead,
}

impl Iterator for ChargeEntries<'_> {
    type Item = ChargeEntry;

    fn next(&mut self) -> Option<ChargeEntry> {
        while self.group.count == 0 {
            self.group = self.reader.group().ok()?;
        }
        self.group.count -= 1;
        let ChargeGroupHead { limit, context, .. } = self.group;
        let (key, amount) = (self.reader.key().ok()?, self.reader.number().ok()?);
        Some(ChargeEntry { limit, context, key, amount })
    }
}

/// Writes a frame.
pub struct PeerFrameWriter(Vec<u8>);

impl PeerFrameWriter {
    /// Starts a frame with its head.
    pub fn head(kind: PeerFrameKind, sender: PeerFrameSender, at: Time) -> PeerFrameWriter {
        let mut writer = PeerFrameWriter(Vec::with_capacity(64));
        writer.0.extend([PROTOCOL_VERSION, kind as u8]);
        writer.word(sender.node);
        writer.word(sender.life);
        writer.word(at.0 / NANOS_PER_MILLI);
        writer
    }

    /// Starts a piece without a head that is added to a frame later.
    pub fn part() -> PeerFrameWriter {
        PeerFrameWriter(Vec::new())
    }

    /// Writes a little-endian number of eight bytes.
    pub fn word(&mut self, word: u64) {
        self.0.extend(word.to_le_bytes());
    }

    /// Writes a number of variable length.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Writes a text, cut to [`TEXT_BYTES_MAX`].
    pub fn text(&mut self, text: &str) {
        let text = shortened(text);
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// Writes a set of seen numbers: the base, the number of ranges, then for each range the length
    /// of the gap before it and its own length.
    pub fn window(&mut self, window: &SequenceWindow) {
        self.number(window.base());
        self.number(window.ranges().len() as u64);
        let mut at = window.base();
        for (start, end) in window.ranges() {
            self.number(start - at);
            self.number(end - start);
            at = *end;
        }
    }

    /// Writes the head of a group of `count` entries, which must follow.
    pub fn group(&mut self, limit: u64, context: u128, count: usize) {
        self.word(limit);
        self.number(context as u64);
        self.number((context >> 64) as u64);
        self.number(count as u64);
    }

    /// Writes one entry of a group.
    pub fn entry(&mut self, key: KeyHash, amount: u64) {
        self.word(key.bits());
        self.number(amount);
    }

    /// Appends bytes that were encoded before.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Length so far in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the encoded bytes.
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// The start of a text of at most [`TEXT_BYTES_MAX`] bytes, cut between characters.
pub fn shortened(text: &str) -> &str {
    let fits = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..fits.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX] {
            let mut writer = PeerFrameWriter::part();
            writer.number(number);
            let bytes = writer.done();
            assert!(bytes.len() <= 10);
            let mut reader = PeerFrameReader::new(&bytes);
            assert_eq!((reader.number(), reader.is_done()), (Ok(number), true));
        }
        assert_eq!(PeerFrameReader::new(&[0xff; 10]).number(), Err(PeerFrameError::Broken));
        assert_eq!(PeerFrameReader::new(&[0x80]).number(), Err(PeerFrameError::Broken));
    }

    #[test]
    fn an_entry_in_hits_is_nine_bytes() {
        let mut writer = PeerFrameWriter::part();
        writer.group(7, 0, 2);
        let group = writer.len();
        writer.entry(KeyHash::from_bits(5), 100);
        assert_eq!((group, writer.len() - group), (11, 9));
        writer.entry(KeyHash::from_bits(6), 12_345_678);
        assert_eq!(writer.len() - group, 9 + 12);
        let bytes = writer.done();
        let entries: Vec<ChargeEntry> =
            PeerFrameReader::new(&bytes).groups().expect("whole").collect();
        assert_eq!((entries.len(), entries[0].amount, entries[1].key.bits()), (2, 100, 6));
        assert!(PeerFrameReader::new(&bytes[..bytes.len() - 1]).groups().is_err());
    }
}
