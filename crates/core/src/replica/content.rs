//! The contents of frames by kind, with their parsing and writing.
//!
//! A parsed frame is complete and valid; no later step finds an error in it. A written frame fits
//! the frame length if its contents do; `send` splits contents to size. See `wire` for the bytes.

use super::bounds::LIMITS_MAX;
use super::limit::ReplicatedLimit;
use super::queue_wire::QueueMessages;
use super::window::SequenceWindow;
use super::wire;
use super::wire::{
    ChargeEntries, PeerFrameError, PeerFrameHead, PeerFrameKind, PeerFrameReader, PeerFrameWriter,
};
use crate::key::KeyHash;
use crate::units::Nanos;
use alloc::vec::Vec;

/// The content of a frame.
pub enum FrameContent<'a> {
    /// The identity and settings of the sender.
    Hello(ReplicaHello<'a>),
    /// Some of the sender's limits.
    Limits { digest: u64, part: u32, limits: Vec<AnnouncedLimit<'a>> },
    /// Charges of one period.
    Report(ChargeReport<'a>),
    /// The reports of the instance `of` that the sender has seen.
    Ack { of: wire::PeerFrameSender, window: SequenceWindow },
    /// A request for the present state, addressed to the instance `of`.
    Want { of: u64 },
    /// The reports that the state for an instance contains.
    Seen { answer: StateAnswerPart, seen: Vec<(wire::PeerFrameSender, SequenceWindow)> },
    /// A part of the state for an instance.
    State { answer: StateAnswerPart, groups: ChargeEntries<'a> },
    /// Readable names of keys.
    Names(Vec<KeyName<'a>>),
    /// Messages about the queue with this fingerprint.
    Queue { queue: u64, messages: QueueMessages<'a> },
}

/// Position of a part within an answer to a state request.
#[derive(Clone, Copy)]
pub struct StateAnswerPart {
    /// The instance that requested the state.
    pub to: u64,
    /// The number of the answer, equal in all of its parts.
    pub number: u64,
    /// Index of this part among the parts of its kind, from 0.
    pub part: u64,
    /// Number of parts of its kind; at least 1.
    pub parts: u64,
}

impl StateAnswerPart {
    /// The whole of a frame that answers no request: no instance has the number 0.
    pub const UNASKED: StateAnswerPart = StateAnswerPart { to: 0, number: 0, part: 0, parts: 1 };
}

/// The identity and settings of the sender.
#[derive(Clone, Copy)]
pub struct ReplicaHello<'a> {
    /// The readable name of the sender.
    pub name: &'a str,
    /// Interval between two reports of the sender.
    pub period: Nanos,
    /// CPUs that the sender shares out, in thousandths.
    pub cpus_milli: u32,
    /// Digest of the sender's limits, which changes with them.
    pub digest: u64,
}

/// A limit as its instance has it.
pub struct AnnouncedLimit<'a> {
    /// The fingerprint, which must be equal for instances to count together.
    pub fingerprint: u64,
    /// The name of the limit.
    pub name: &'a str,
    /// The parameters in readable form.
    pub numbers: &'a str,
}

/// A part of the charges of one period.
pub struct ChargeReport<'a> {
    /// The number of the period.
    pub period: u64,
    /// The number of this part among all parts of all reports.
    pub number: u64,
    /// Parts with a lower number will not arrive any more.
    pub oldest: u64,
    /// Index of this part within its period, from 0.
    pub part: u64,
    /// The entries of this part.
    pub groups: ChargeEntries<'a>,
}

/// The readable name of a key.
pub struct KeyName<'a> {
    /// The fingerprint of the limit.
    pub limit: u64,
    /// The hash of the key.
    pub key: KeyHash,
    /// The name, at most [`wire::TEXT_BYTES_MAX`] bytes.
    pub name: &'a str,
}

impl<'a> FrameContent<'a> {
    /// Parses a whole frame.
    pub fn read(bytes: &'a [u8]) -> Result<(PeerFrameHead, FrameContent<'a>), PeerFrameError> {
        let mut reader = PeerFrameReader::new(bytes);
        let head = reader.head()?;
        let said = match head.kind {
            PeerFrameKind::Hello => FrameContent::Hello(hello(&mut reader)?),
            PeerFrameKind::Limits => limits(&mut reader)?,
            PeerFrameKind::Report => return Ok((head, FrameContent::Report(report(reader)?))),
            PeerFrameKind::Ack => {
                FrameContent::Ack { of: sender(&mut reader)?, window: reader.window()? }
            }
            PeerFrameKind::Want => FrameContent::Want { of: reader.word()? },
            PeerFrameKind::Seen => seen(&mut reader)?,
            PeerFrameKind::State => {
                let answer = answer(&mut reader)?;
                return Ok((head, FrameContent::State { answer, groups: reader.groups()? }));
            }
            PeerFrameKind::Names => FrameContent::Names(names(&mut reader)?),
            PeerFrameKind::Queue => {
                let queue = reader.word()?;
                let messages = QueueMessages::checked(reader)?;
                return Ok((head, FrameContent::Queue { queue, messages }));
            }
        };
        reader.end()?;
        Ok((head, said))
    }
}

fn sender(reader: &mut PeerFrameReader<'_>) -> Result<wire::PeerFrameSender, PeerFrameError> {
    Ok(wire::PeerFrameSender { node: reader.word()?, life: reader.word()? })
}

fn hello<'a>(reader: &mut PeerFrameReader<'a>) -> Result<ReplicaHello<'a>, PeerFrameError> {
    Ok(ReplicaHello {
        name: reader.text()?,
        period: Nanos::from_millis(reader.at_most(PERIOD_MILLIS_MAX)?),
        cpus_milli: reader.at_most(u64::from(u32::MAX))? as u32,
        digest: reader.word()?,
    })
}

/// The maximum accepted period of a peer: an hour.
const PERIOD_MILLIS_MAX: u64 = 3_600_000;

fn limits<'a>(reader: &mut PeerFrameReader<'a>) -> Result<FrameContent<'a>, PeerFrameError> {
    let digest = reader.word()?;
    let part = reader.at_most(u64::from(LIMITS_MAX as u32))? as u32;
    let mut limits = Vec::new();
    while !reader.is_done() {
        let fingerprint = reader.word()?;
        limits.push(AnnouncedLimit { fingerprint, name: reader.text()?, numbers: reader.text()? });
    }
    Ok(FrameContent::Limits { digest, part, limits })
}

fn report(mut reader: PeerFrameReader<'_>) -> Result<ChargeReport<'_>, PeerFrameError> {
    let (period, number) = (reader.number()?, reader.number()?);
    let oldest = number.checked_sub(reader.number()?).ok_or(PeerFrameError::Broken)?;
    let part = reader.number()?;
    let parts = reader.number()?;
    if part >= parts || part > number {
        return Err(PeerFrameError::Broken);
    }
    Ok(ChargeReport { period, number, oldest, part, groups: reader.groups()? })
}

fn seen<'a>(reader: &mut PeerFrameReader<'_>) -> Result<FrameContent<'a>, PeerFrameError> {
    let answer = answer(reader)?;
    let mut seen = Vec::new();
    while !reader.is_done() {
        seen.push((sender(reader)?, reader.window()?));
    }
    Ok(FrameContent::Seen { answer, seen })
}

fn answer(reader: &mut PeerFrameReader<'_>) -> Result<StateAnswerPart, PeerFrameError> {
    let (to, number) = (reader.word()?, reader.number()?);
    let (part, parts) = (reader.number()?, reader.number()?);
    if part < parts {
        Ok(StateAnswerPart { to, number, part, parts })
    } else {
        Err(PeerFrameError::Broken)
    }
}

fn names<'a>(reader: &mut PeerFrameReader<'a>) -> Result<Vec<KeyName<'a>>, PeerFrameError> {
    let mut names = Vec::new();
    while !reader.is_done() {
        let (limit, key) = (reader.word()?, reader.key()?);
        names.push(KeyName { limit, key, name: reader.text()? });
    }
    Ok(names)
}

/// Writes the content of a hello.
pub fn write_hello(writer: &mut PeerFrameWriter, hello: ReplicaHello<'_>) {
    writer.text(hello.name);
    writer.number(hello.period.0 / 1_000_000);
    writer.number(hello.cpus_milli.into());
    writer.word(hello.digest);
}

/// Writes one limit of a limits frame, which begins with `digest` and `part`.
pub fn write_limit(writer: &mut PeerFrameWriter, limit: &ReplicatedLimit) {
    writer.word(limit.fingerprint);
    writer.text(&limit.name);
    writer.text(&limit.numbers);
}

/// Writes the fields before the groups of a report. `of` is the index of the part and the number of
/// parts.
pub fn write_report(
    writer: &mut PeerFrameWriter,
    period: u64,
    number: u64,
    oldest: u64,
    of: [u64; 2],
) {
    writer.number(period);
    writer.number(number);
    writer.number(number - oldest.min(number));
    writer.number(of[0]);
    writer.number(of[1]);
}

/// Writes the position of a part within an answer.
pub fn write_answer(writer: &mut PeerFrameWriter, answer: StateAnswerPart) {
    writer.word(answer.to);
    writer.number(answer.number);
    writer.number(answer.part);
    writer.number(answer.parts);
}

/// Writes which reports of `of` have been seen.
pub fn write_ack(writer: &mut PeerFrameWriter, of: wire::PeerFrameSender, window: &SequenceWindow) {
    writer.word(of.node);
    writer.word(of.life);
    writer.window(window);
}
