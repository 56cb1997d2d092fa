//! What instances tell each other, as bytes: a head that every frame has, then what its kind says.
//!
//! Numbers are little-endian or variable-length (seven bits a byte, the lowest first). A frame is
//! understood whole before any of it is believed, so a broken one changes nothing. Limits are named
//! by a fingerprint in each group of entries: no frame needs another to be understood, and any may
//! be lost. The layout for others to implement: docs/protocol/peers.md.

use super::window::Window;
use crate::key::KeyHash;
use crate::units::Time;
use alloc::vec::Vec;
use core::fmt;

/// The version of everything here. Frames of another are refused.
pub const VERSION: u8 = 1;
/// Bytes of the head.
pub const HEAD_BYTES: usize = 26;
/// What stands before the entries of a report, at most.
pub const REPORT_BYTES: usize = HEAD_BYTES + 6 * 10;
/// What stands before the entries of a group, at most.
pub const GROUP_BYTES: usize = 8 + 3 * 10;
/// An entry, at most.
pub const ENTRY_BYTES: usize = 8 + 10;
/// The longest frame that is looked at.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The longest text: names of instances, limits and keys.
pub const TEXT_BYTES_MAX: usize = 120;

/// Why a frame is not believed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is of another version: the peer is, or this instance.
    Version(u8),
    /// It ends too early, goes on after its end, or has a number that cannot be.
    Broken,
    /// It is longer than any frame.
    Long,
    /// It was sent before its link said who speaks, or by somebody else than that.
    Stranger,
    /// It says to come from this instance, which has not sent it.
    Twin,
    /// It comes from an earlier life of its instance.
    Stale,
    /// There are as many instances as are listened to.
    Full,
    /// It was made at another time, or the clocks differ.
    Time,
    /// Its instance says more in a period than there can be to say.
    Flood,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Version(version) => {
                return write!(f, "it speaks version {version} of the protocol, not {VERSION}");
            }
            Fault::Broken => "it is broken",
            Fault::Long => "it is too long",
            Fault::Stranger => "nobody has said who speaks, or somebody else did",
            Fault::Twin => "two instances have one identity",
            Fault::Stale => "it is from before its instance was started again",
            Fault::Full => "there are more instances than `nodes_max`",
            Fault::Time => "it is more than a minute old, or the clocks of the machines differ",
            Fault::Flood => "its instance says too much",
        })
    }
}

impl core::error::Error for Fault {}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who speaks.
    Hello = 1,
    /// Some of its limits.
    Limits = 2,
    /// What was charged.
    Report = 3,
    /// Which reports have been seen.
    Ack = 4,
    /// Asks for the present state.
    Want = 5,
    /// What the state that follows contains.
    Seen = 6,
    /// A part of the state.
    State = 7,
    /// Names of keys.
    Names = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Hello,
        Kind::Limits,
        Kind::Report,
        Kind::Ack,
        Kind::Want,
        Kind::Seen,
        Kind::State,
        Kind::Names,
    ];
}

/// Who sends a frame: an instance, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sender {
    /// The instance.
    pub node: u64,
    /// Which of its lives; later ones are greater.
    pub life: u64,
}

/// What every frame begins with.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// What it is for.
    pub kind: Kind,
    /// Who says it.
    pub sender: Sender,
    /// When it was made, to the millisecond.
    pub at: Time,
}

/// Nanoseconds in a millisecond.
const MILLI: u64 = 1_000_000;

/// Reads a frame from its start.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// The head of a frame.
    pub fn head(&mut self) -> Result<Head, Fault> {
        if self.0.len() > FRAME_BYTES_MAX {
            return Err(Fault::Long);
        }
        let version = self.byte()?;
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let kind = self.byte()?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        let sender = Sender { node: self.word()?, life: self.word()? };
        let at = Time(self.word()?.saturating_mul(MILLI));
        Ok(Head { kind: kind.ok_or(Fault::Broken)?, sender, at })
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Fault> {
        let (first, rest) = self.0.split_first().ok_or(Fault::Broken)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Eight bytes.
    pub fn word(&mut self) -> Result<u64, Fault> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Fault::Broken)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// A number of variable length.
    pub fn number(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                return Err(Fault::Broken);
            }
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Fault::Broken)
    }

    /// A number that is not above `max`.
    pub fn at_most(&mut self, max: u64) -> Result<u64, Fault> {
        self.number().and_then(|n| if n <= max { Ok(n) } else { Err(Fault::Broken) })
    }

    /// Text: its length, then as many bytes of UTF-8.
    pub fn text(&mut self) -> Result<&'a str, Fault> {
        let length = self.at_most(TEXT_BYTES_MAX as u64)? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Fault::Broken)?;
        self.0 = rest;
        core::str::from_utf8(text).map_err(|_| Fault::Broken)
    }

    /// A key.
    pub fn key(&mut self) -> Result<KeyHash, Fault> {
        let bits = self.word()?;
        let key = KeyHash::from_bits(bits);
        if key.bits() == bits { Ok(key) } else { Err(Fault::Broken) }
    }

    /// Which numbers have been seen, as [`Writer::window`] writes it.
    pub fn window(&mut self) -> Result<Window, Fault> {
        let mut window = Window::starting_at(self.number()?);
        let mut at = window.base();
        for _ in 0..self.at_most(super::window::RANGES_MAX as u64)? {
            let start = at.checked_add(self.number()?).ok_or(Fault::Broken)?;
            let end = start.checked_add(self.number()?).ok_or(Fault::Broken)?;
            if start == at || end == start {
                return Err(Fault::Broken);
            }
            window.push(start, end);
            at = end;
        }
        Ok(window)
    }

    /// That nothing follows.
    pub fn end(self) -> Result<(), Fault> {
        if self.0.is_empty() { Ok(()) } else { Err(Fault::Broken) }
    }

    /// Whether nothing follows.
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// The groups that are all the rest, each looked at.
    pub fn groups(self) -> Result<Groups<'a>, Fault> {
        let mut reader = self;
        while !reader.is_done() {
            let group = reader.group()?;
            for _ in 0..group.count {
                reader.key()?;
                reader.number()?;
            }
        }
        Ok(Groups { reader: self, group: Group::default() })
    }

    fn group(&mut self) -> Result<Group, Fault> {
        let limit = self.word()?;
        let (low, high) = (self.number()?, self.number()?);
        let context = u128::from(high) << 64 | u128::from(low);
        Ok(Group { limit, context, count: self.number()? })
    }
}

/// What some entries have in common.
#[derive(Clone, Copy, Default)]
struct Group {
    limit: u64,
    context: u128,
    count: u64,
}

/// An amount under a key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The limit's fingerprint.
    pub limit: u64,
    /// What the limit says of itself beside.
    pub context: u128,
    /// Whose.
    pub key: KeyHash,
    /// How much, in the limit's units.
    pub amount: u64,
}

/// Entries that have been looked at.
pub struct Groups<'a> {
    reader: Reader<'a>,
    group: Group,
}

impl Iterator for Groups<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        while self.group.count == 0 {
            self.group = self.reader.group().ok()?;
        }
        self.group.count -= 1;
        let Group { limit, context, .. } = self.group;
        let (key, amount) = (self.reader.key().ok()?, self.reader.number().ok()?);
        Some(Entry { limit, context, key, amount })
    }
}

/// Writes a frame.
pub struct Writer(Vec<u8>);

impl Writer {
    /// The head of a frame.
    pub fn head(kind: Kind, sender: Sender, at: Time) -> Writer {
        let mut writer = Writer(Vec::with_capacity(64));
        writer.0.extend([VERSION, kind as u8]);
        writer.word(sender.node);
        writer.word(sender.life);
        writer.word(at.0 / MILLI);
        writer
    }

    /// What comes into a frame later.
    pub fn part() -> Writer {
        Writer(Vec::new())
    }

    /// Eight bytes.
    pub fn word(&mut self, word: u64) {
        self.0.extend(word.to_le_bytes());
    }

    /// A number of variable length.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Text, as much of it as may be.
    pub fn text(&mut self, text: &str) {
        let text = shortened(text);
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// Which numbers have been seen: below which all, then how long each gap and what follows it.
    pub fn window(&mut self, window: &Window) {
        self.number(window.base());
        self.number(window.ranges().len() as u64);
        let mut at = window.base();
        for (start, end) in window.ranges() {
            self.number(start - at);
            self.number(end - start);
            at = *end;
        }
    }

    /// What entries that follow have in common.
    pub fn group(&mut self, limit: u64, context: u128, count: usize) {
        self.word(limit);
        self.number(context as u64);
        self.number((context >> 64) as u64);
        self.number(count as u64);
    }

    /// One entry of a group.
    pub fn entry(&mut self, key: KeyHash, amount: u64) {
        self.word(key.bits());
        self.number(amount);
    }

    /// Bytes that were written before.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// How long it is so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The frame.
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// As much of a text as is sent, cut between characters.
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
            let mut writer = Writer::part();
            writer.number(number);
            let bytes = writer.done();
            assert!(bytes.len() <= 10);
            let mut reader = Reader::new(&bytes);
            assert_eq!((reader.number(), reader.is_done()), (Ok(number), true));
        }
        assert_eq!(Reader::new(&[0xff; 10]).number(), Err(Fault::Broken));
        assert_eq!(Reader::new(&[0x80]).number(), Err(Fault::Broken));
    }

    #[test]
    fn an_entry_in_hits_is_nine_bytes() {
        let mut writer = Writer::part();
        writer.group(7, 0, 2);
        let group = writer.len();
        writer.entry(KeyHash::from_bits(5), 100);
        assert_eq!((group, writer.len() - group), (11, 9));
        writer.entry(KeyHash::from_bits(6), 12_345_678);
        assert_eq!(writer.len() - group, 9 + 12);
        let bytes = writer.done();
        let entries: Vec<Entry> = Reader::new(&bytes).groups().expect("whole").collect();
        assert_eq!((entries.len(), entries[0].amount, entries[1].key.bits()), (2, 100, 6));
        assert!(Reader::new(&bytes[..bytes.len() - 1]).groups().is_err());
    }
}
