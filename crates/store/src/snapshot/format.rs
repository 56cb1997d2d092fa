//! The format of a snapshot: little-endian records after a head, and a checksum at the end.
//!
//! ```text
//! head     "EVENKEEL", version u16, number of limits u16, 0 u32, seed 16 bytes, written u64
//! limit    door, name: length u8 and text; by: length u16 and text;
//!          unit u8, algorithm u8, words u8, its three numbers u64 each;
//!          blocks: count u32 (from 1 to 1024) and that number of buckets; a count of 0 ends them
//! bucket   hash u64, state: `words` times u64
//! end      CRC-32 (IEEE) of everything before it, u32
//! ```
//!
//! The counters of the rate limit service are stored under one limit of algorithm 6, with one word
//! each, and the clients that a queue remembers under one of algorithm 7, with two words. A bucket
//! with reservations is algorithm 8: they are written, and ignored when it is restored. Times are
//! nanoseconds since the Unix epoch. Reading is strict: any deviation is an error, and then no part
//! of the file may be used. How a snapshot is used: `restore`. No file is opened here.

use crc32fast::Hasher;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::fixed::FixedWindow;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::bucket::history::RequestHistory;
use evenkeel_core::bucket::quota::QuotaBucket;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::bucket::{Algorithm, STATE_WORDS_MAX};
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::LimitUnit;
use evenkeel_core::queue::ClientHistory;
use evenkeel_core::units::{Cost, Nanos, Rate, Time};
use std::io::{self, Read, Write};

/// The first bytes of every snapshot.
const MAGIC: [u8; 8] = *b"EVENKEEL";
/// The version of the format that is written.
const VERSION: u16 = 2;
/// The first version, which has no clients, is read as well.
const VERSION_MIN: u16 = 1;
/// The most buckets in a block: half a megabyte with the widest state.
const BLOCK_BUCKETS_MAX: usize = 1_024;
/// The algorithm number of [`SnapshotAlgorithm::Windows`].
const WINDOWS_ALGORITHM: u8 = 6;
/// The algorithm number of [`SnapshotAlgorithm::Clients`].
const CLIENTS_ALGORITHM: u8 = 7;
/// The longest description of a limit's key, in bytes.
const BY_BYTES_MAX: usize = 4_096;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// Reading the file failed.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file ends too early.
    #[error("it is cut off")]
    Short,
    /// The file does not begin as a snapshot does.
    #[error("it is not a snapshot of evenkeel")]
    Stranger,
    /// The snapshot was written in another version of the format.
    #[error("its version is {0}, and only {VERSION_MIN} to {VERSION} are supported")]
    Version(u16),
    /// The checksum does not match the contents.
    #[error("it is damaged: its checksum is wrong")]
    Checksum,
    /// The named part has a value that is not allowed.
    #[error("it is damaged: {0} is invalid")]
    Shape(&'static str),
}

/// The head of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The seed with which the keys were hashed.
    pub seed: KeySeed,
    /// When the snapshot was begun.
    pub written: Time,
    /// The number of limits that follow.
    pub limits: u16,
}

/// The limit that the following buckets belong to. Buckets are restored into a limit of the same
/// door, name, key and unit whose algorithm continues this one. Counters of windows are restored
/// into those of the same door.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotLimit {
    /// The name of the limit's door.
    pub door: String,
    /// The name of the limit.
    pub name: String,
    /// The parts of the limit's key, as text.
    pub by: String,
    /// The unit of the limit: hits or CPU time.
    pub unit: LimitUnit,
    /// The algorithm of the buckets.
    pub counting: SnapshotAlgorithm,
}

/// The algorithm of a limit's buckets.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotAlgorithm {
    /// An algorithm for buckets, with its numbers.
    Bucket(Algorithm),
    /// The counters of `evenkeel_core::windows`. A counter's state includes its algorithm.
    Windows,
    /// The clients of `evenkeel_core::queue::ClientHistory`.
    Clients,
}

impl SnapshotAlgorithm {
    /// The number of words in the state of a bucket.
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            SnapshotAlgorithm::Bucket(algorithm) => algorithm.words(),
            SnapshotAlgorithm::Windows => 1,
            SnapshotAlgorithm::Clients => ClientHistory::WORDS,
        }
    }
}

/// A writer of one snapshot. The order of calls: `begin`, then for each limit `limit`, its
/// `bucket`s and `end_limit`, then `finish`.
pub struct SnapshotWriter<W> {
    to: W,
    sum: Hasher,
    /// The encoded buckets of a block that is not full yet.
    block: Vec<u8>,
    in_block: usize,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins a snapshot on `to`, which should be buffered.
    ///
    /// # Errors
    /// Writing to `to` fails. The same applies to the methods below.
    pub fn begin(to: W, head: SnapshotHead) -> io::Result<SnapshotWriter<W>> {
        let mut writer = SnapshotWriter { to, sum: Hasher::new(), block: Vec::new(), in_block: 0 };
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
    /// Writing fails, or a text of the limit is too long.
    pub fn limit(&mut self, kept: &SnapshotLimit) -> io::Result<()> {
        for text in [&kept.door, &kept.name] {
            let length = u8::try_from(text.len()).map_err(io::Error::other)?;
            self.put(&[length])?;
            self.put(text.as_bytes())?;
        }
        let length = u16::try_from(kept.by.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(kept.by.as_bytes())?;
        let unit = match kept.unit {
            LimitUnit::Cpu => 0,
            LimitUnit::Hits => 1,
            LimitUnit::Tokens => 2,
            LimitUnit::Money => 3,
        };
        let (algorithm, numbers) = numbers(&kept.counting);
        let words = u8::try_from(kept.counting.words()).map_err(io::Error::other)?;
        self.put(&[unit, algorithm, words])?;
        numbers.into_iter().try_for_each(|number| self.put(&number.to_le_bytes()))
    }

    /// Adds a bucket of the limit that was begun last.
    ///
    /// # Errors
    /// Writing fails.
    pub fn bucket(&mut self, hash: KeyHash, state: &[u64]) -> io::Result<()> {
        self.block.extend_from_slice(&hash.bits().to_le_bytes());
        state.iter().for_each(|word| self.block.extend_from_slice(&word.to_le_bytes()));
        self.in_block += 1;
        if self.in_block == BLOCK_BUCKETS_MAX { self.flush_block() } else { Ok(()) }
    }

    /// Ends the buckets of a limit.
    ///
    /// # Errors
    /// Writing fails.
    pub fn end_limit(&mut self) -> io::Result<()> {
        if self.in_block > 0 {
            self.flush_block()?;
        }
        self.put(&0_u32.to_le_bytes())
    }

    /// Ends the snapshot and returns the underlying writer.
    ///
    /// # Errors
    /// Writing fails.
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

/// The number of an algorithm and its three parameters; zero for those that it does not have.
fn numbers(counting: &SnapshotAlgorithm) -> (u8, [u64; 3]) {
    let algorithm = match counting {
        SnapshotAlgorithm::Bucket(algorithm) => algorithm,
        SnapshotAlgorithm::Windows => return (WINDOWS_ALGORITHM, [0; 3]),
        SnapshotAlgorithm::Clients => return (CLIENTS_ALGORITHM, [0; 3]),
    };
    match algorithm {
        Algorithm::Debt(debt) => (1, [debt.rate().to_bits(), debt.burst().0, 0]),
        Algorithm::Sliding(sliding) => {
            (2, [sliding.window().0, sliding.max().0, sliding.round().0])
        }
        Algorithm::Fixed(fixed) => (3, [fixed.limit().into(), fixed.window().0, 0]),
        Algorithm::History(history) => (4, [history.burst() as u64, history.interval().0, 0]),
        Algorithm::Grid(grid) => (5, grid.numbers()),
        Algorithm::Quota(quota) => {
            (8, [quota.bucket().rate().to_bits(), quota.bucket().burst().0, 0])
        }
    }
}

fn counting(kind: u8, numbers: [u64; 3]) -> Option<SnapshotAlgorithm> {
    match (kind, numbers) {
        (WINDOWS_ALGORITHM, [0, 0, 0]) => Some(SnapshotAlgorithm::Windows),
        (CLIENTS_ALGORITHM, [0, 0, 0]) => Some(SnapshotAlgorithm::Clients),
        _ => algorithm(kind, numbers).map(SnapshotAlgorithm::Bucket),
    }
}

fn algorithm(kind: u8, [first, second, third]: [u64; 3]) -> Option<Algorithm> {
    match kind {
        2 => {
            let sliding = SlidingWindow::new(Nanos(first), Cost(second)).ok()?;
            Some(Algorithm::Sliding(sliding.rounded(Cost(third))))
        }
        5 => GridBucket::from_numbers([first, second, third]).map(Algorithm::Grid),
        _ if third != 0 => None,
        1 => Some(Algorithm::Debt(DebtBucket::new(Rate::from_bits(first)?, Cost(second)))),
        8 => {
            let bucket = DebtBucket::new(Rate::from_bits(first)?, Cost(second));
            Some(Algorithm::Quota(QuotaBucket::new(bucket)))
        }
        3 => {
            let seconds = u32::try_from(Time(second).second()).ok()?;
            let fixed = FixedWindow::new(u32::try_from(first).ok()?, seconds).ok()?;
            (fixed.window().0 == second).then_some(Algorithm::Fixed(fixed))
        }
        4 => {
            let burst = usize::try_from(first).ok()?;
            RequestHistory::new(burst, Nanos(second)).ok().map(Algorithm::History)
        }
        _ => None,
    }
}

/// A record of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SnapshotRecord<'a> {
    /// A limit. Its buckets follow.
    Limit(&'a SnapshotLimit),
    /// The key and the state of a bucket.
    Bucket(KeyHash, &'a [u64]),
}

/// Reads a complete snapshot from `source`, which should be buffered, and passes each record to
/// `see`. The records are valid only if the result is `Ok`. So read a snapshot once to check it,
/// and only then again to use it.
///
/// # Errors
/// [`SnapshotReadError`].
pub fn read(
    source: impl Read,
    mut see: impl FnMut(SnapshotRecord<'_>),
) -> Result<SnapshotHead, SnapshotReadError> {
    let mut reader = SnapshotReader { from: source, sum: Hasher::new() };
    let head = reader.head()?;
    let mut block = Vec::new();
    for _ in 0..head.limits {
        let (kept, words) = reader.limit()?;
        see(SnapshotRecord::Limit(&kept));
        while let Some(count) = reader.count()? {
            block.resize(count * (1 + words) * 8, 0);
            reader.take(&mut block)?;
            for record in block.chunks_exact((1 + words) * 8) {
                let mut state = [0; 1 + STATE_WORDS_MAX];
                let fields = record.as_chunks::<8>().0;
                state.iter_mut().zip(fields).for_each(|(s, f)| *s = u64::from_le_bytes(*f));
                let hash = KeyHash::from_bits(state[0]);
                if hash.bits() != state[0] {
                    return Err(SnapshotReadError::Shape("the hash of a key"));
                }
                see(SnapshotRecord::Bucket(hash, &state[1..=words]));
            }
        }
    }
    reader.end()?;
    Ok(head)
}

struct SnapshotReader<R> {
    from: R,
    sum: Hasher,
}

impl<R: Read> SnapshotReader<R> {
    fn head(&mut self) -> Result<SnapshotHead, SnapshotReadError> {
        if self.bytes()? != MAGIC {
            return Err(SnapshotReadError::Stranger);
        }
        let version = u16::from_le_bytes(self.bytes()?);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(SnapshotReadError::Version(version));
        }
        let limits = u16::from_le_bytes(self.bytes()?);
        if self.bytes()? != [0; 4] {
            return Err(SnapshotReadError::Shape("the reserved field"));
        }
        let seed = KeySeed(self.bytes()?);
        Ok(SnapshotHead { seed, limits, written: Time(u64::from_le_bytes(self.bytes()?)) })
    }

    /// Reads a limit, and returns it with the number of words in the state of its buckets.
    fn limit(&mut self) -> Result<(SnapshotLimit, usize), SnapshotReadError> {
        let length = self.byte()?;
        let door = self.text(length.into())?;
        let length = self.byte()?;
        let name = self.text(length.into())?;
        let length = usize::from(u16::from_le_bytes(self.bytes()?));
        if length > BY_BYTES_MAX {
            return Err(SnapshotReadError::Shape("the key of a limit"));
        }
        let by = self.text(length)?;
        let unit = match self.byte()? {
            0 => LimitUnit::Cpu,
            1 => LimitUnit::Hits,
            2 => LimitUnit::Tokens,
            3 => LimitUnit::Money,
            _ => return Err(SnapshotReadError::Shape("a unit")),
        };
        let [kind, words] = self.bytes()?;
        let mut numbers = [0; 3];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.bytes()?);
        }
        let counting = counting(kind, numbers).ok_or(SnapshotReadError::Shape("an algorithm"))?;
        if counting.words() != usize::from(words) {
            return Err(SnapshotReadError::Shape("the width of a bucket"));
        }
        Ok((SnapshotLimit { door, name, by, unit, counting }, usize::from(words)))
    }

    /// Reads the number of buckets in the next block; `None` after the last one.
    fn count(&mut self) -> Result<Option<usize>, SnapshotReadError> {
        match u32::from_le_bytes(self.bytes()?) as usize {
            0 => Ok(None),
            count @ 1..=BLOCK_BUCKETS_MAX => Ok(Some(count)),
            _ => Err(SnapshotReadError::Shape("the size of a block")),
        }
    }

    fn end(mut self) -> Result<(), SnapshotReadError> {
        let sum = self.sum.clone().finalize();
        if u32::from_le_bytes(self.bytes()?) != sum {
            return Err(SnapshotReadError::Checksum);
        }
        let more = self.from.take(1).read_to_end(&mut Vec::new())?;
        if more > 0 { Err(SnapshotReadError::Shape("data after its end")) } else { Ok(()) }
    }

    fn text(&mut self, length: usize) -> Result<String, SnapshotReadError> {
        let mut bytes = vec![0; length];
        self.take(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| SnapshotReadError::Shape("a name"))
    }

    fn byte(&mut self) -> Result<u8, SnapshotReadError> {
        self.bytes().map(|[byte]| byte)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SnapshotReadError> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotReadError> {
        match self.from.read_exact(bytes) {
            Ok(()) => {
                self.sum.update(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(SnapshotReadError::Short)
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
