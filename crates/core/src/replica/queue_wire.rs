//! The binary format of the messages between instances that share a queue.
//!
//! A message is a byte with its kind, then its fields. Points in time travel as ages, before the
//! time in the head of the frame when it is written and before the present when it is read, with a
//! sign, so that clocks may be apart. Amounts that are longer than there is a use for are cut when
//! they are written, and refused when they are read. The layout is specified in
//! docs/protocol/peers.md.

use super::wire::{PeerFrameError, PeerFrameReader, PeerFrameWriter};
use crate::meter::estimate::{OwnRoute, RouteHash};
use crate::queue::shared::{GrantedVisit, InstanceBeat, QueueMessage, RequestCounts, TERM_MAX};
use crate::queue::standing::{Visit, VisitPass, VisitTicket, WaitingRoomEntry};
use crate::queue::{Arrival, DebtFlow, QueuePlace, RefusalCause, RefusedRequest, RequestId};
use crate::units::{Cost, Nanos, Time, Weight};
use alloc::vec::Vec;

/// Maximum length of a message, in bytes: that of a request that asks.
pub const MESSAGE_BYTES_MAX: usize = 96;
/// The longest time, and the greatest cost, that a message has: a week. A connection may be open
/// for longer.
pub const AMOUNT_MAX: u64 = 7 * 24 * 3_600 * crate::units::SECOND;
/// The greatest number of slots that a message has.
const SLOTS_MAX: u32 = 1 << 16;

/// The kinds of messages.
mod kind {
    pub const BEAT: u8 = 1;
    pub const JOIN: u8 = 2;
    pub const ASK: u8 = 3;
    pub const CANCEL: u8 = 4;
    pub const DONE: u8 = 5;
    pub const ESTIMATE: u8 = 6;
    pub const TAKE: u8 = 7;
    pub const RETURN: u8 = 8;
    pub const GRANT: u8 = 9;
    pub const REFUSE: u8 = 10;
    pub const WAITING_ROOM: u8 = 11;
    pub const KEEP: u8 = 12;
    pub const PROGRESS: u8 = 13;
}

/// Bits that say which fields follow, or that are fields themselves.
mod flag {
    // Of a beat.
    pub const IS_OWNER: u64 = 1;
    pub const HAS_JOINED: u64 = 2;
    pub const PRESSURE: u64 = 4;
    // Of a request that asks.
    pub const DEBT: u64 = 1;
    pub const IS_GUESS: u64 = 2;
    pub const ROUTE: u64 = 4;
    pub const OWN: u64 = 8;
    pub const OWN_IS_KNOWN: u64 = 16;
    pub const TICKET: u64 = 32;
    pub const PASS: u64 = 64;
    pub const ACCEPTS_WAITING_PAGE: u64 = 128;
    pub const BURNS: u64 = 256;
    // Of a request that has ended.
    pub const WORKED: u64 = 1;
    pub const KEEPS: u64 = 2;
    // Of a grant.
    pub const GRANT_PASS: u64 = 1;
    pub const NEWCOMER: u64 = 2;
}

/// The bit if it is set.
const fn bit(flag: u64, is_set: bool) -> u64 {
    if is_set { flag } else { 0 }
}

/// Writes a message. `at`: the time in the head of the frame.
pub fn write_message(writer: &mut PeerFrameWriter, message: &QueueMessage, at: Time) {
    let mut id_of = |kind: u8, id: RequestId| {
        writer.bytes(&[kind]);
        writer.number(id.0);
    };
    match message {
        QueueMessage::Beat(beat) => write_beat(writer, beat),
        QueueMessage::Join { running } => write_slots(writer, kind::JOIN, *running),
        QueueMessage::Ask { id, arrival } => {
            id_of(kind::ASK, *id);
            write_arrival(writer, arrival, at);
        }
        QueueMessage::Cancel { id } => id_of(kind::CANCEL, *id),
        QueueMessage::Progress { id, cost } => {
            id_of(kind::PROGRESS, *id);
            write_amount(writer, cost.0);
        }
        QueueMessage::Done { id, cost, worked, keeps } => {
            id_of(kind::DONE, *id);
            writer.number(bit(flag::WORKED, worked.is_some()) | bit(flag::KEEPS, *keeps));
            write_amount(writer, cost.0);
            if let Some((route, elapsed)) = worked {
                writer.word(route.bits());
                write_amount(writer, elapsed.0);
            }
        }
        QueueMessage::Estimate { route, cost } => {
            writer.bytes(&[kind::ESTIMATE]);
            writer.word(route.bits());
            write_amount(writer, cost.0);
        }
        QueueMessage::Take { slots } => write_slots(writer, kind::TAKE, *slots),
        QueueMessage::Return { slots } => write_slots(writer, kind::RETURN, *slots),
        QueueMessage::Grant { id, visit } => {
            id_of(kind::GRANT, *id);
            write_granted(writer, visit, at);
        }
        QueueMessage::Refuse(refused) => {
            id_of(kind::REFUSE, refused.id);
            write_amount(writer, refused.retry_after.0);
            writer.number(match refused.cause {
                RefusalCause::WaitMax => 0,
                RefusalCause::LenMax => 1,
            });
        }
        QueueMessage::WaitingRoom(entry) => {
            id_of(kind::WAITING_ROOM, entry.id);
            writer.number(u64::from(entry.needs_ticket));
            write_age(writer, entry.first_came, at);
            write_amount(writer, entry.come_back_after.0);
            write_amount(writer, entry.expected_wait.0);
        }
        QueueMessage::Keep(may_keep) => writer.bytes(&[kind::KEEP, u8::from(*may_keep)]),
    }
}

fn write_slots(writer: &mut PeerFrameWriter, kind: u8, slots: u32) {
    writer.bytes(&[kind]);
    writer.number(slots.min(SLOTS_MAX).into());
}

fn write_amount(writer: &mut PeerFrameWriter, amount: u64) {
    writer.number(amount.min(AMOUNT_MAX));
}

/// Writes how long before `at` a time is. The lowest bit says whether it is after `at`.
fn write_age(writer: &mut PeerFrameWriter, time: Time, at: Time) {
    let (age, is_after) = (at.since(time).max(time.since(at)), time > at);
    writer.number(age.0.min(u64::MAX >> 1) << 1 | u64::from(is_after));
}

fn write_beat(writer: &mut PeerFrameWriter, beat: &InstanceBeat) {
    writer.bytes(&[kind::BEAT]);
    writer.number(
        bit(flag::IS_OWNER, beat.is_owner)
            | bit(flag::HAS_JOINED, beat.has_joined)
            | bit(flag::PRESSURE, beat.pressure.is_some()),
    );
    writer.number(beat.term);
    writer.number(beat.slots.clamp(1, SLOTS_MAX).into());
    if let Some(pressure) = beat.pressure {
        write_amount(writer, pressure.0);
    }
    for counts in [beat.own, beat.all] {
        writer.number(counts.waiting.into());
        writer.number(counts.running.into());
    }
}

fn write_arrival(writer: &mut PeerFrameWriter, arrival: &Arrival, at: Time) {
    writer.number(
        bit(flag::DEBT, matches!(arrival.place, QueuePlace::Debt(_)))
            | bit(flag::IS_GUESS, arrival.is_guess)
            | bit(flag::ROUTE, arrival.route.is_some())
            | bit(flag::OWN, arrival.own.is_some())
            | bit(flag::OWN_IS_KNOWN, arrival.own.is_some_and(|own| own.is_known))
            | bit(flag::TICKET, matches!(arrival.visit, Visit::Ticket(_)))
            | bit(flag::PASS, matches!(arrival.visit, Visit::Pass(_)))
            | bit(flag::ACCEPTS_WAITING_PAGE, arrival.accepts_waiting_page)
            | bit(flag::BURNS, arrival.burns),
    );
    writer.word(arrival.client.bits());
    write_amount(writer, arrival.estimate.0);
    writer.number(arrival.weight.thousandths().into());
    if let QueuePlace::Debt(bucket) = arrival.place {
        writer.number(bucket.limit.into());
        writer.word(bucket.hash.bits());
    }
    if let Some(route) = arrival.route {
        writer.word(route.bits());
    }
    if let Some(own) = arrival.own {
        writer.word(own.hash.bits());
    }
    match arrival.visit {
        Visit::Unknown => {}
        Visit::Ticket(VisitTicket { id, first_came: time })
        | Visit::Pass(VisitPass { id, stamp: time }) => {
            writer.word(id);
            write_age(writer, time, at);
        }
    }
}

fn write_granted(writer: &mut PeerFrameWriter, visit: &GrantedVisit, at: Time) {
    writer.number(
        bit(flag::GRANT_PASS, visit.pass.is_some())
            | bit(flag::NEWCOMER, visit.newcomer_since.is_some()),
    );
    if let Some(pass) = visit.pass {
        writer.word(pass.id);
        write_age(writer, pass.stamp, at);
    }
    if let Some(since) = visit.newcomer_since {
        write_age(writer, since, at);
    }
}

/// Messages that have been checked. Their times are read against the clock of this instance.
#[derive(Clone, Copy)]
pub struct QueueMessages<'a>(PeerFrameReader<'a>);

impl<'a> QueueMessages<'a> {
    /// The rest of a frame, if it consists of messages that can be.
    pub fn checked(reader: PeerFrameReader<'a>) -> Result<QueueMessages<'a>, PeerFrameError> {
        let mut rest = reader;
        while !rest.is_done() {
            read_message(&mut rest, Time::ZERO)?;
        }
        Ok(QueueMessages(reader))
    }

    /// The messages. `at`: the time that ages count from, by the clock of this instance.
    pub fn read(self, at: Time) -> Vec<QueueMessage> {
        let mut reader = self.0;
        core::iter::from_fn(|| read_message(&mut reader, at).ok()).collect()
    }
}

fn read_message(
    reader: &mut PeerFrameReader<'_>,
    at: Time,
) -> Result<QueueMessage, PeerFrameError> {
    Ok(match reader.byte()? {
        kind::BEAT => QueueMessage::Beat(read_beat(reader)?),
        kind::JOIN => QueueMessage::Join { running: read_slots(reader)? },
        kind::ASK => QueueMessage::Ask { id: read_id(reader)?, arrival: read_arrival(reader, at)? },
        kind::CANCEL => QueueMessage::Cancel { id: read_id(reader)? },
        kind::PROGRESS => {
            QueueMessage::Progress { id: read_id(reader)?, cost: Cost(read_amount(reader)?) }
        }
        kind::DONE => read_done(reader)?,
        kind::ESTIMATE => {
            QueueMessage::Estimate { route: read_route(reader)?, cost: Cost(read_amount(reader)?) }
        }
        kind::TAKE => QueueMessage::Take { slots: read_slots(reader)? },
        kind::RETURN => QueueMessage::Return { slots: read_slots(reader)? },
        kind::GRANT => {
            QueueMessage::Grant { id: read_id(reader)?, visit: read_granted(reader, at)? }
        }
        kind::REFUSE => QueueMessage::Refuse(RefusedRequest {
            id: read_id(reader)?,
            retry_after: Nanos(read_amount(reader)?),
            cause: match read_bool(reader)? {
                false => RefusalCause::WaitMax,
                true => RefusalCause::LenMax,
            },
        }),
        kind::WAITING_ROOM => QueueMessage::WaitingRoom(WaitingRoomEntry {
            id: read_id(reader)?,
            needs_ticket: read_bool(reader)?,
            first_came: read_age(reader, at)?,
            come_back_after: Nanos(read_amount(reader)?),
            expected_wait: Nanos(read_amount(reader)?),
        }),
        kind::KEEP => QueueMessage::Keep(read_bool(reader)?),
        _ => return Err(PeerFrameError::Broken),
    })
}

fn read_id(reader: &mut PeerFrameReader<'_>) -> Result<RequestId, PeerFrameError> {
    reader.number().map(RequestId)
}

fn read_bool(reader: &mut PeerFrameReader<'_>) -> Result<bool, PeerFrameError> {
    reader.at_most(1).map(|bit| bit == 1)
}

fn read_slots(reader: &mut PeerFrameReader<'_>) -> Result<u32, PeerFrameError> {
    reader.at_most(SLOTS_MAX.into()).map(|slots| slots as u32)
}

fn read_amount(reader: &mut PeerFrameReader<'_>) -> Result<u64, PeerFrameError> {
    reader.at_most(AMOUNT_MAX)
}

fn read_route(reader: &mut PeerFrameReader<'_>) -> Result<RouteHash, PeerFrameError> {
    reader.key().map(RouteHash::from_hash)
}

fn read_age(reader: &mut PeerFrameReader<'_>, at: Time) -> Result<Time, PeerFrameError> {
    let number = reader.number()?;
    let age = Nanos(number >> 1);
    Ok(if number & 1 == 1 { at.plus(age) } else { at.minus(age) })
}

fn read_beat(reader: &mut PeerFrameReader<'_>) -> Result<InstanceBeat, PeerFrameError> {
    let flags = reader.at_most(flag::IS_OWNER | flag::HAS_JOINED | flag::PRESSURE)?;
    let term = reader.at_most(TERM_MAX)?;
    let slots = read_slots(reader)?;
    if slots == 0 {
        return Err(PeerFrameError::Broken);
    }
    let has_pressure = flags & flag::PRESSURE != 0;
    Ok(InstanceBeat {
        term,
        is_owner: flags & flag::IS_OWNER != 0,
        slots,
        has_joined: flags & flag::HAS_JOINED != 0,
        pressure: has_pressure.then(|| read_amount(reader)).transpose()?.map(Nanos),
        own: read_counts(reader)?,
        all: read_counts(reader)?,
    })
}

fn read_counts(reader: &mut PeerFrameReader<'_>) -> Result<RequestCounts, PeerFrameError> {
    let mut count = || reader.at_most(u32::MAX.into()).map(|count| count as u32);
    Ok(RequestCounts { waiting: count()?, running: count()? })
}

fn read_done(reader: &mut PeerFrameReader<'_>) -> Result<QueueMessage, PeerFrameError> {
    let id = read_id(reader)?;
    let flags = reader.at_most(flag::WORKED | flag::KEEPS)?;
    let cost = Cost(read_amount(reader)?);
    let worked = match flags & flag::WORKED != 0 {
        true => Some((read_route(reader)?, Nanos(read_amount(reader)?))),
        false => None,
    };
    Ok(QueueMessage::Done { id, cost, worked, keeps: flags & flag::KEEPS != 0 })
}

fn read_arrival(reader: &mut PeerFrameReader<'_>, at: Time) -> Result<Arrival, PeerFrameError> {
    let flags = reader.at_most(2 * flag::BURNS - 1)?;
    let has = |flag: u64| flags & flag != 0;
    let client = reader.key()?;
    let estimate = Cost(read_amount(reader)?);
    let thousandths = reader.at_most(u32::MAX.into())? as u32;
    let weight = Weight::new(thousandths);
    if weight.thousandths() != thousandths
        || (has(flag::OWN_IS_KNOWN) && !has(flag::OWN))
        || (has(flag::TICKET) && has(flag::PASS))
    {
        return Err(PeerFrameError::Broken);
    }
    let place = match has(flag::DEBT) {
        true => QueuePlace::Debt(read_bucket(reader)?),
        false => QueuePlace::Credit,
    };
    let route = has(flag::ROUTE).then(|| read_route(reader)).transpose()?;
    let own = has(flag::OWN).then(|| read_route(reader)).transpose()?;
    let visit = match has(flag::TICKET) || has(flag::PASS) {
        true => {
            let (id, time) = (reader.word()?, read_age(reader, at)?);
            match has(flag::TICKET) {
                true => Visit::Ticket(VisitTicket { id, first_came: time }),
                false => Visit::Pass(VisitPass { id, stamp: time }),
            }
        }
        false => Visit::Unknown,
    };
    Ok(Arrival {
        client,
        place,
        estimate,
        is_guess: has(flag::IS_GUESS),
        route,
        own: own.map(|hash| OwnRoute { hash, is_known: has(flag::OWN_IS_KNOWN) }),
        weight,
        visit,
        accepts_waiting_page: has(flag::ACCEPTS_WAITING_PAGE),
        burns: has(flag::BURNS),
    })
}

fn read_bucket(reader: &mut PeerFrameReader<'_>) -> Result<DebtFlow, PeerFrameError> {
    let limit = reader.at_most(u16::MAX.into())? as u16;
    Ok(DebtFlow { limit, hash: reader.key()? })
}

fn read_granted(
    reader: &mut PeerFrameReader<'_>,
    at: Time,
) -> Result<GrantedVisit, PeerFrameError> {
    let flags = reader.at_most(flag::GRANT_PASS | flag::NEWCOMER)?;
    let mut granted = GrantedVisit::default();
    if flags & flag::GRANT_PASS != 0 {
        granted.pass = Some(VisitPass { id: reader.word()?, stamp: read_age(reader, at)? });
    }
    if flags & flag::NEWCOMER != 0 {
        granted.newcomer_since = Some(read_age(reader, at)?);
    }
    Ok(granted)
}
