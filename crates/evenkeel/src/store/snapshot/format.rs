//! What a snapshot looks like: fixed little-endian records behind a head, a checksum at the end.
//!
//! ```text
//! head     "EVENKEEL", version u16, number of limits u16, 0 u32, seed 16 bytes, written u64
//! limit    door, name: length u8 and text; by: length u16 and text;
//!          unit u8, algorithm u8, words u8, its three numbers u64 each;
//!          blocks: count u32 (from 1 to 1024) and as many buckets; a count of 0 ends them
//! bucket   hash u64, state: `words` times u64
//! end      CRC-32 (IEEE) of everything before it, u32
//! ```
//!
//! The counters of the rate limit service lie under one limit of algorithm 6, of a word each.
//! Times are nanoseconds since the Unix epoch. Reading is strict: whatever is not exactly this is a
//! fault, and then nothing of it is to be believed. What is done with it: `state`. No file is
//! opened here.

use crc32fast::Hasher;
use evenkeel_core::bucket::debt::Debt;
use evenkeel_core::bucket::fixed::Fixed;
use evenkeel_core::bucket::grid::Grid;
use evenkeel_core::bucket::history::History;
use evenkeel_core::bucket::sliding::Sliding;
use evenkeel_core::bucket::{Algorithm, STATE_WORDS_MAX};
use evenkeel_core::key::{KeyHash, Seed};
use evenkeel_core::limit::Unit;
use evenkeel_core::units::{Cost, Nanos, Rate, Time};
use std::io::{self, Read, Write};

/// The first bytes of every snapshot.
const MAGIC: [u8; 8] = *b"EVENKEEL";
/// The only version there is.
const VERSION: u16 = 1;
/// The most buckets in a block: half a megabyte of the widest.
const BLOCK_MAX: usize = 1_024;
/// The algorithm of [`Counting::Windows`].
const WINDOWS: u8 = 6;
/// The longest text of what a limit counts by, in bytes.
const BY_BYTES_MAX: usize = 4_096;

/// Why a snapshot is not believed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It ends too early.
    #[error("it is cut off")]
    Short,
    /// It does not begin as one.
    #[error("it is not a snapshot of evenkeel")]
    Stranger,
    /// Another program wrote it.
    #[error("it is of version {0}, and only version {VERSION} is read here")]
    Version(u16),
    /// Its checksum is not that of its contents.
    #[error("it is damaged: its checksum is wrong")]
    Checksum,
    /// Something in it cannot be.
    #[error("it is damaged: {0} cannot be")]
    Shape(&'static str),
}

/// What a snapshot begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What its keys were hashed with.
    pub seed: Seed,
    /// When it was begun.
    pub written: Time,
    /// How many limits follow.
    pub limits: u16,
}

/// Which limit the buckets that follow are of. Buckets are taken over by a limit of the same door,
/// name, key and unit, whose algorithm continues this one; counters of windows, by those of the
/// same door.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The limit's door.
    pub door: String,
    /// Its name.
    pub name: String,
    /// What it counts by, as text.
    pub by: String,
    /// What it counts.
    pub unit: Unit,
    /// How.
    pub counting: Counting,
}

/// How something is counted.
#[derive(Clone, Debug, PartialEq)]
pub enum Counting {
    /// By an algorithm with its numbers.
    Bucket(Algorithm),
    /// By `evenkeel_core::windows`, where a counter's word says itself how.
    Windows,
}

impl Counting {
    /// How many words a bucket has.
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Counting::Bucket(algorithm) => algorithm.words(),
            Counting::Windows => 1,
        }
    }
}

/// Writes one snapshot.
pub struct Writer<W> {
    to: W,
    sum: Hasher,
    /// Buckets that wait for their block to be full.
    block: Vec<u8>,
    in_block: usize,
}

impl<W: Write> Writer<W> {
    /// Begins a snapshot on `to`, which should be buffered.
    ///
    /// # Errors
    /// Those of `to`, here and below.
    pub fn begin(to: W, head: Head) -> io::Result<Writer<W>> {
        let mut writer = Writer { to, sum: Hasher::new(), block: Vec::new(), in_block: 0 };
        writer.put(&MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        writer.put(&head.limits.to_le_bytes())?;
        writer.put(&[0; 4])?;
        writer.put(&head.seed.0)?;
        writer.put(&head.written.0.to_le_bytes())?;
        Ok(writer)
    }

    /// Begins the buckets of a limit.
    ///
    /// # Errors
    /// Also if one of its texts is too long.
    pub fn limit(&mut self, kept: &Kept) -> io::Result<()> {
        for text in [&kept.door, &kept.name] {
            let length = u8::try_from(text.len()).map_err(io::Error::other)?;
            self.put(&[length])?;
            self.put(text.as_bytes())?;
        }
        let length = u16::try_from(kept.by.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(kept.by.as_bytes())?;
        let unit = match kept.unit {
            Unit::Cpu => 0,
            Unit::Hits => 1,
        };
        let (algorithm, numbers) = numbers(&kept.counting);
        let words = u8::try_from(kept.counting.words()).map_err(io::Error::other)?;
        self.put(&[unit, algorithm, words])?;
        numbers.into_iter().try_for_each(|number| self.put(&number.to_le_bytes()))
    }

    /// Adds a bucket of the limit begun last.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn bucket(&mut self, hash: KeyHash, state: &[u64]) -> io::Result<()> {
        self.block.extend_from_slice(&hash.bits().to_le_bytes());
        state.iter().for_each(|word| self.block.extend_from_slice(&word.to_le_bytes()));
        self.in_block += 1;
        if self.in_block == BLOCK_MAX { self.flush_block() } else { Ok(()) }
    }

    /// Ends the buckets of a limit.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end_limit(&mut self) -> io::Result<()> {
        if self.in_block > 0 {
            self.flush_block()?;
        }
        self.put(&0_u32.to_le_bytes())
    }

    /// Ends the snapshot, and gives back what it was written to.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        let sum = self.sum.finalize();
        self.to.write_all(&sum.to_le_bytes())?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn flush_block(&mut self) -> io::Result<()> {
        let count = u32::try_from(self.in_block).map_err(io::Error::other)?;
        self.put(&count.to_le_bytes())?;
        let mut block = std::mem::take(&mut self.block);
        let result = self.put(&block);
        block.clear();
        self.block = block;
        self.in_block = 0;
        result
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }
}

/// An algorithm's kind and its numbers; zero where it has fewer.
fn numbers(counting: &Counting) -> (u8, [u64; 3]) {
    let Counting::Bucket(algorithm) = counting else { return (WINDOWS, [0; 3]) };
    match algorithm {
        Algorithm::Debt(debt) => (1, [debt.rate().to_bits(), debt.burst().0, 0]),
        Algorithm::Sliding(sliding) => {
            (2, [sliding.window().0, sliding.max().0, sliding.round().0])
        }
        Algorithm::Fixed(fixed) => (3, [fixed.limit().into(), fixed.window().0, 0]),
        Algorithm::History(history) => (4, [history.burst() as u64, history.interval().0, 0]),
        Algorithm::Grid(grid) => (5, grid.numbers()),
    }
}

fn counting(kind: u8, numbers: [u64; 3]) -> Option<Counting> {
    match (kind, numbers) {
        (WINDOWS, [0, 0, 0]) => Some(Counting::Windows),
        _ => algorithm(kind, numbers).map(Counting::Bucket),
    }
}

fn algorithm(kind: u8, [first, second, third]: [u64; 3]) -> Option<Algorithm> {
    match kind {
        2 => {
            let sliding = Sliding::new(Nanos(first), Cost(second)).ok()?;
            Some(Algorithm::Sliding(sliding.rounded(Cost(third))))
        }
        5 => Grid::from_numbers([first, second, third]).map(Algorithm::Grid),
        _ if third != 0 => None,
        1 => Some(Algorithm::Debt(Debt::new(Rate::from_bits(first)?, Cost(second)))),
        3 => {
            let seconds = u32::try_from(Time(second).second()).ok()?;
            let fixed = Fixed::new(u32::try_from(first).ok()?, seconds).ok()?;
            (fixed.window().0 == second).then_some(Algorithm::Fixed(fixed))
        }
        4 => {
            let burst = usize::try_from(first).ok()?;
            History::new(burst, Nanos(second)).ok().map(Algorithm::History)
        }
        _ => None,
    }
}

/// What is met in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen<'a> {
    /// A limit; its buckets follow.
    Limit(&'a Kept),
    /// A bucket, and its state.
    Bucket(KeyHash, &'a [u64]),
}

/// Reads a whole snapshot from `source`, which should be buffered, and shows what is in it. What is
/// shown may be believed only if the result is good: look once, and only then once more to use it.
///
/// # Errors
/// [`Fault`].
pub fn read(source: impl Read, mut see: impl FnMut(Seen<'_>)) -> Result<Head, Fault> {
    let mut reader = Reader { from: source, sum: Hasher::new() };
    let head = reader.head()?;
    let mut block = Vec::new();
    for _ in 0..head.limits {
        let (kept, words) = reader.limit()?;
        see(Seen::Limit(&kept));
        while let Some(count) = reader.count()? {
            block.resize(count * (1 + words) * 8, 0);
            reader.take(&mut block)?;
            for record in block.chunks_exact((1 + words) * 8) {
                let mut state = [0; 1 + STATE_WORDS_MAX];
                let fields = record.as_chunks::<8>().0;
                state.iter_mut().zip(fields).for_each(|(s, f)| *s = u64::from_le_bytes(*f));
                let hash = KeyHash::from_bits(state[0]);
                if hash.bits() != state[0] {
                    return Err(Fault::Shape("the hash of a key"));
                }
                see(Seen::Bucket(hash, &state[1..=words]));
            }
        }
    }
    reader.end()?;
    Ok(head)
}

struct Reader<R> {
    from: R,
    sum: Hasher,
}

impl<R: Read> Reader<R> {
    fn head(&mut self) -> Result<Head, Fault> {
        if self.bytes()? != MAGIC {
            return Err(Fault::Stranger);
        }
        let version = u16::from_le_bytes(self.bytes()?);
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let limits = u16::from_le_bytes(self.bytes()?);
        if self.bytes()? != [0; 4] {
            return Err(Fault::Shape("what is kept free"));
        }
        let seed = Seed(self.bytes()?);
        Ok(Head { seed, limits, written: Time(u64::from_le_bytes(self.bytes()?)) })
    }

    /// A limit, and how many words its buckets have.
    fn limit(&mut self) -> Result<(Kept, usize), Fault> {
        let length = self.byte()?;
        let door = self.text(length.into())?;
        let length = self.byte()?;
        let name = self.text(length.into())?;
        let length = usize::from(u16::from_le_bytes(self.bytes()?));
        if length > BY_BYTES_MAX {
            return Err(Fault::Shape("what a limit counts by"));
        }
        let by = self.text(length)?;
        let unit = match self.byte()? {
            0 => Unit::Cpu,
            1 => Unit::Hits,
            _ => return Err(Fault::Shape("a unit")),
        };
        let [kind, words] = self.bytes()?;
        let mut numbers = [0; 3];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.bytes()?);
        }
        let counting = counting(kind, numbers).ok_or(Fault::Shape("an algorithm"))?;
        if counting.words() != usize::from(words) {
            return Err(Fault::Shape("the width of a bucket"));
        }
        Ok((Kept { door, name, by, unit, counting }, usize::from(words)))
    }

    /// How many buckets the next block has; `None`: there is none.
    fn count(&mut self) -> Result<Option<usize>, Fault> {
        match u32::from_le_bytes(self.bytes()?) as usize {
            0 => Ok(None),
            count @ 1..=BLOCK_MAX => Ok(Some(count)),
            _ => Err(Fault::Shape("the size of a block")),
        }
    }

    fn end(mut self) -> Result<(), Fault> {
        let sum = self.sum.clone().finalize();
        if u32::from_le_bytes(self.bytes()?) != sum {
            return Err(Fault::Checksum);
        }
        let more = self.from.take(1).read_to_end(&mut Vec::new())?;
        if more > 0 { Err(Fault::Shape("anything after its end")) } else { Ok(()) }
    }

    fn text(&mut self, length: usize) -> Result<String, Fault> {
        let mut bytes = vec![0; length];
        self.take(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Fault::Shape("a name"))
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        self.bytes().map(|[byte]| byte)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        match self.from.read_exact(bytes) {
            Ok(()) => {
                self.sum.update(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Fault::Short),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
