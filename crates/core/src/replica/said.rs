//! Frames by what they say: each kind as it is read, and as it is written.
//!
//! What is read is whole: nothing is found broken later. What is written fits into a frame if what
//! it is made of does; who cuts that to size is `send`. Bytes: `wire`.

use super::window::Window;
use super::wire::{Fault, Groups, Head, Kind, Reader, Writer};
use super::{Shared, wire};
use crate::key::KeyHash;
use crate::units::Nanos;
use alloc::vec::Vec;

/// What a frame says.
pub enum Said<'a> {
    /// Who speaks.
    Hello(Hello<'a>),
    /// Some of its limits.
    Limits { digest: u64, part: u32, limits: Vec<Limit<'a>> },
    /// What was charged.
    Report(Report<'a>),
    /// Which reports of whom have been seen.
    Ack { of: wire::Sender, window: Window },
    /// Asks an instance for the present state.
    Want { of: u64 },
    /// What the state for an instance contains.
    Seen { answer: Answer, seen: Vec<(wire::Sender, Window)> },
    /// A part of the state for an instance.
    State { answer: Answer, groups: Groups<'a> },
    /// Names of keys.
    Names(Vec<Name<'a>>),
}

/// Which part of which answer to somebody who wants the state.
#[derive(Clone, Copy)]
pub struct Answer {
    /// Who wants it.
    pub to: u64,
    /// Which answer: other parts of it have the same number.
    pub number: u64,
    /// Which part of its kind this is, from 0.
    pub part: u64,
    /// How many parts of its kind there are; at least 1.
    pub parts: u64,
}

/// Who speaks.
#[derive(Clone, Copy)]
pub struct Hello<'a> {
    /// Its name for people.
    pub name: &'a str,
    /// How often it reports.
    pub period: Nanos,
    /// Thousandths of CPUs that it has to share out.
    pub cpus_milli: u32,
    /// Changes with its limits.
    pub digest: u64,
}

/// A limit as its instance has it.
pub struct Limit<'a> {
    /// What has to be equal to count together.
    pub fingerprint: u64,
    /// Its name.
    pub name: &'a str,
    /// Its numbers, for people.
    pub numbers: &'a str,
}

/// A part of what was charged in a period.
pub struct Report<'a> {
    /// The number of the period.
    pub period: u64,
    /// The number of this part among all parts of all reports.
    pub number: u64,
    /// No part with a lower number will come any more.
    pub oldest: u64,
    /// Which of the period's parts it is, from 0.
    pub part: u64,
    /// The entries.
    pub groups: Groups<'a>,
}

/// What a key is called.
pub struct Name<'a> {
    /// The limit's fingerprint.
    pub limit: u64,
    /// The key.
    pub key: KeyHash,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Said<'a> {
    /// Reads a whole frame.
    pub fn read(bytes: &'a [u8]) -> Result<(Head, Said<'a>), Fault> {
        let mut reader = Reader::new(bytes);
        let head = reader.head()?;
        let said = match head.kind {
            Kind::Hello => Said::Hello(hello(&mut reader)?),
            Kind::Limits => limits(&mut reader)?,
            Kind::Report => return Ok((head, Said::Report(report(reader)?))),
            Kind::Ack => Said::Ack { of: sender(&mut reader)?, window: reader.window()? },
            Kind::Want => Said::Want { of: reader.word()? },
            Kind::Seen => seen(&mut reader)?,
            Kind::State => {
                let answer = answer(&mut reader)?;
                return Ok((head, Said::State { answer, groups: reader.groups()? }));
            }
            Kind::Names => Said::Names(names(&mut reader)?),
        };
        reader.end()?;
        Ok((head, said))
    }
}

fn sender(reader: &mut Reader<'_>) -> Result<wire::Sender, Fault> {
    Ok(wire::Sender { node: reader.word()?, life: reader.word()? })
}

fn hello<'a>(reader: &mut Reader<'a>) -> Result<Hello<'a>, Fault> {
    Ok(Hello {
        name: reader.text()?,
        period: Nanos::from_millis(reader.at_most(PERIOD_MILLIS_MAX)?),
        cpus_milli: reader.at_most(u64::from(u32::MAX))? as u32,
        digest: reader.word()?,
    })
}

/// The longest period that anybody is believed to have: an hour.
const PERIOD_MILLIS_MAX: u64 = 3_600_000;

fn limits<'a>(reader: &mut Reader<'a>) -> Result<Said<'a>, Fault> {
    let digest = reader.word()?;
    let part = reader.at_most(u64::from(super::LIMITS_MAX as u32))? as u32;
    let mut limits = Vec::new();
    while !reader.is_done() {
        let fingerprint = reader.word()?;
        limits.push(Limit { fingerprint, name: reader.text()?, numbers: reader.text()? });
    }
    Ok(Said::Limits { digest, part, limits })
}

fn report(mut reader: Reader<'_>) -> Result<Report<'_>, Fault> {
    let (period, number) = (reader.number()?, reader.number()?);
    let oldest = number.checked_sub(reader.number()?).ok_or(Fault::Broken)?;
    let part = reader.number()?;
    let parts = reader.number()?;
    if part >= parts || part > number {
        return Err(Fault::Broken);
    }
    Ok(Report { period, number, oldest, part, groups: reader.groups()? })
}

fn seen<'a>(reader: &mut Reader<'_>) -> Result<Said<'a>, Fault> {
    let answer = answer(reader)?;
    let mut seen = Vec::new();
    while !reader.is_done() {
        seen.push((sender(reader)?, reader.window()?));
    }
    Ok(Said::Seen { answer, seen })
}

fn answer(reader: &mut Reader<'_>) -> Result<Answer, Fault> {
    let (to, number) = (reader.word()?, reader.number()?);
    let (part, parts) = (reader.number()?, reader.number()?);
    if part < parts { Ok(Answer { to, number, part, parts }) } else { Err(Fault::Broken) }
}

fn names<'a>(reader: &mut Reader<'a>) -> Result<Vec<Name<'a>>, Fault> {
    let mut names = Vec::new();
    while !reader.is_done() {
        let (limit, key) = (reader.word()?, reader.key()?);
        names.push(Name { limit, key, name: reader.text()? });
    }
    Ok(names)
}

/// Who speaks.
pub fn write_hello(writer: &mut Writer, hello: Hello<'_>) {
    writer.text(hello.name);
    writer.number(hello.period.0 / 1_000_000);
    writer.number(hello.cpus_milli.into());
    writer.word(hello.digest);
}

/// One limit of a frame of them, behind `digest` and `part`.
pub fn write_limit(writer: &mut Writer, limit: &Shared) {
    writer.word(limit.fingerprint);
    writer.text(&limit.name);
    writer.text(&limit.numbers);
}

/// What stands before the groups of a report.
pub fn write_report(writer: &mut Writer, period: u64, number: u64, oldest: u64, of: [u64; 2]) {
    writer.number(period);
    writer.number(number);
    writer.number(number - oldest.min(number));
    writer.number(of[0]);
    writer.number(of[1]);
}

/// Which part of which answer this is.
pub fn write_answer(writer: &mut Writer, answer: Answer) {
    writer.word(answer.to);
    writer.number(answer.number);
    writer.number(answer.part);
    writer.number(answer.parts);
}

/// Which reports of `of` have been seen.
pub fn write_ack(writer: &mut Writer, of: wire::Sender, window: &Window) {
    writer.word(of.node);
    writer.word(of.life);
    writer.window(window);
}
