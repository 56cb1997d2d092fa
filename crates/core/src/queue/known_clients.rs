//! The clients that were served: since when, how often, and their place in line.
//!
//! They are stored in the same way as buckets: a hash and two words in fixed memory, with no list
//! and no background sweep, 36 bytes for each client. Only requests that get their turn write to
//! the table, so a flood of new names that is not served does not reach it. Clients that were
//! served often are evicted last: a million names that were served once displace none of them.
//!
//! A *stamp* is an identity's place in line. It starts when the client first came, and under
//! pressure each request moves it on by cost / rate. So an identity that uses less than its rate is
//! always in the past. Without pressure, no stamp moves. The lines are served in `lines`.
//!
//! Instances that count together share the records in `shared`.

mod entry;
mod history;
mod shared;

use super::place::{Line, Place};
use super::pressure::Pressure;
use super::request::{Arrival, QueuePlace};
use super::settings::{QueueSettings, WorkUnit};
use super::standing::{
    HISTORY_MILLI_CPUS, KnownClients, PASS_MILLI_CPUS, TICKET_AGE_MAX, Visit, VisitPass,
    VisitTicket,
};
use super::turns::length;
use crate::key::KeyHash;
use crate::table::BucketTable;
use crate::units::{Cost, Nanos, Time, Weight};
use alloc::sync::Arc;
use entry::{HISTORY_SERVED_MIN, KnownClient, STAMP_REACH, Sharing};
pub use history::{ClientHistory, ReturningClient};
pub use shared::SharedClient;

/// The same if there is no pressure, with [`KnownClients::Always`].
const CALM_SERVED_MIN: u64 = 8;
/// The time since it was first served, if there is no pressure, with [`KnownClients::Always`].
const CALM_HISTORY: Nanos = Nanos::from_secs(120);
/// Distinguishes requests of an address that wait as strangers from those that wait as known ones,
/// so that the latter do not wait behind the former.
const STRANGER_KEY: u64 = 0x5bd1_e995_9d1b_54a5;

/// Where a request stands: what it waits as, and where its cost is charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The identity that takes turns. Its requests wait in FIFO order.
    pub client: KeyHash,
    pub place: Place,
    pub account: LineAccount,
}

/// The place of a request in line, and where its cost is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineAccount {
    /// The place in line, before the cost of the request is added.
    pub base: Time,
    /// The key in the table: an address, or the number of a ticket.
    pub known_as: KeyHash,
    /// The rate at which the stamp moves, in thousandths of a processor. 0: it does not move.
    pub milli: u64,
    /// The number of the ticket or pass that the request stands by.
    pub visit: Option<u64>,
    /// Whether the request has a valid ticket or pass. It may stand by another right: a ticket is
    /// good for one request at a time.
    pub keeps_visit: bool,
}

impl Standing {
    /// As if clients were not distinguished.
    pub fn plain(client: KeyHash, place: QueuePlace, now: Time) -> Standing {
        Standing { client, place: place.into(), account: LineAccount::plain(client, now) }
    }
}

impl LineAccount {
    /// The account of an unknown client that came at `now`.
    pub fn plain(client: KeyHash, now: Time) -> LineAccount {
        LineAccount { base: now, known_as: client, milli: 0, visit: None, keeps_visit: false }
    }
}

/// The table, and whether the lines apply at present.
pub(super) struct Known {
    table: Arc<BucketTable>,
    always: bool,
    /// What a client that was here before may use without losing its place, in thousandths of a
    /// processor.
    history_milli: u64,
    pub pressure: Pressure,
}

impl Known {
    /// `None` if clients are not distinguished.
    pub fn new(settings: &QueueSettings) -> Option<Known> {
        let (always, clients_max) = match settings.known {
            KnownClients::Off => return None,
            KnownClients::Auto { clients_max } => (false, clients_max),
            KnownClients::Always { clients_max } => (true, clients_max),
        };
        let table = Arc::new(BucketTable::new(clients_max, ClientHistory::WORDS));
        let history_milli = history_milli(settings);
        Some(Known { table, always, history_milli, pressure: Pressure::default() })
    }

    /// Applies changed settings. Requests that wait keep what they have.
    pub fn set_settings(&mut self, settings: &QueueSettings) {
        self.history_milli = history_milli(settings);
    }

    /// The clients that are remembered.
    pub fn history(&self) -> ClientHistory {
        ClientHistory { table: Arc::clone(&self.table) }
    }

    /// Whether requests in credit wait in lines.
    pub fn applies(&self) -> bool {
        self.always || self.pressure.since().is_some()
    }

    /// Where a request in credit stands. `in_use`: whether a request of this identity waits or
    /// runs.
    pub fn standing(
        &self,
        arrival: &Arrival,
        in_use: impl Fn(KeyHash) -> bool,
        now: Time,
    ) -> Standing {
        let address = arrival.client;
        if !self.applies() || arrival.place != QueuePlace::Credit {
            return Standing::plain(address, arrival.place, now);
        }
        let plain = LineAccount::plain(address, now);
        let known = self.find(address, now);
        if let Some(known) = known.filter(|known| self.was_here(*known, now) && known.stamp <= now)
        {
            let account = LineAccount { base: known.stamp, milli: self.history_milli, ..plain };
            return Standing { client: address, place: Place::Credit, account };
        }
        let visit = self.visitor(arrival.visit, now);
        let behind = |place| if arrival.burns { Place::Line(Line::Burning) } else { place };
        if let Some((id, place, base)) = visit {
            let key = KeyHash::from_bits(id);
            // A browser sends the ticket with all that it loads for the waiting page, such as the
            // icon of the site. That must not use it up.
            let takes_ticket = || arrival.accepts_waiting_page && !in_use(key);
            if place != Place::Line(Line::First) || takes_ticket() {
                let (visit, milli) = (Some(id), PASS_MILLI_CPUS);
                let account = LineAccount { base, known_as: key, milli, visit, keeps_visit: true };
                return Standing { client: key, place: behind(place), account };
            }
        }
        let client = KeyHash::from_bits(address.bits() ^ STRANGER_KEY);
        let (place, base) = known.map_or((STRANGERS, now), |known| placed(known.stamp, now));
        let (milli, keeps_visit) = (PASS_MILLI_CPUS, visit.is_some());
        let account = LineAccount { base, milli, keeps_visit, ..plain };
        Standing { client, place: behind(place), account }
    }

    /// Where a request stands because of its ticket or pass, and the number of that.
    fn visitor(&self, visit: Visit, now: Time) -> Option<(u64, Place, Time)> {
        let (id, stamp) = match visit {
            Visit::Unknown => return None,
            Visit::Ticket(VisitTicket { id, first_came }) => (id, first_came),
            Visit::Pass(VisitPass { id, stamp }) => (id, stamp),
        };
        let (place, base) = match (self.find(KeyHash::from_bits(id), now), visit) {
            // A ticket that was served counts as the pass that it became.
            (Some(known), _) => placed(known.stamp.max(stamp), now),
            (None, Visit::Pass(_)) => placed(stamp, now),
            (None, _) => {
                let is_valid = stamp <= now && now.since(stamp) <= TICKET_AGE_MAX;
                is_valid.then_some((Place::Line(Line::First), stamp))?
            }
        };
        Some((id, place, base))
    }

    /// Where a request stands that waited in credit when the pressure began; `base`: when it
    /// arrived.
    pub fn standing_at_onset(&self, address: KeyHash, base: Time, now: Time) -> (Place, Time, u64) {
        match self.find(address, now) {
            Some(known) if self.was_here(known, now) => {
                (Place::Credit, known.stamp, self.history_milli)
            }
            _ => (STRANGERS, base, PASS_MILLI_CPUS),
        }
    }

    fn was_here(&self, known: KnownClient, now: Time) -> bool {
        match self.pressure.since() {
            Some(began) => known.since < began && known.served >= HISTORY_SERVED_MIN,
            None => now.since(known.since) >= CALM_HISTORY && known.served >= CALM_SERVED_MIN,
        }
    }

    fn find(&self, key: KeyHash, now: Time) -> Option<KnownClient> {
        let known = self.table.take(key).with(KnownClient::of);
        (known.served > 0 && !known.is_forgotten(now)).then_some(known)
    }

    /// Counts a request that gets its turn, and charges its cost to the stamp. `base`: the stamp of
    /// an identity that is new here.
    pub fn handle_dispatch(&self, at: &Charged, base: Time, now: Time) {
        let change = |state: &mut [u64]| {
            let mut known = KnownClient::of(state);
            if known.served == 0 || known.is_forgotten(now) {
                let sharing = Sharing::Due;
                known = KnownClient { since: now, stamp: base, served: 0, sharing };
            }
            known.count(self.pressure.since().is_some(), now);
            // Without pressure a place in line is not known, and `base` is the time of arrival.
            let base = if at.milli == 0 { Time::ZERO } else { base };
            let from = known.stamp.max(base).max(now.minus(STAMP_REACH));
            known.stamp = from.plus(at.moves()).min(now.plus(STAMP_REACH));
            known.write(state);
        };
        let worth = |state: &[u64]| KnownClient::worth(state, now);
        self.table.take(at.known_as).change(change, worth);
    }

    /// Corrects a stamp: `before` was charged, and `after` is right.
    pub fn correct(&self, before: &Charged, after: &Charged) {
        let mut entry = self.table.take(before.known_as);
        if entry.get(1) == 0 {
            return;
        }
        let change = |state: &mut [u64]| {
            let mut known = KnownClient::of(state);
            known.stamp = known.stamp.minus(before.moves()).plus(after.moves());
            known.write(state);
        };
        entry.change(change, |_| u64::MAX);
    }

    /// The stamp of an identity, if it is known.
    pub fn stamp(&self, key: KeyHash) -> Option<Time> {
        let known = self.table.take(key).with(KnownClient::of);
        (known.served > 0).then_some(known.stamp)
    }
}

/// A cost that is charged to a stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charged {
    pub known_as: KeyHash,
    pub cost: Cost,
    pub weight: Weight,
    pub milli: u64,
}

impl Charged {
    fn moves(&self) -> Nanos {
        if self.milli == 0 { Nanos::ZERO } else { stamp_length(self.cost, self.weight, self.milli) }
    }
}

/// How far `cost` moves a stamp at a rate of `milli` thousandths of a processor.
pub(super) fn stamp_length(cost: Cost, weight: Weight, milli: u64) -> Nanos {
    // A length counts thousandths of nanoseconds, and a rate thousandths of processors.
    Nanos(u64::try_from(length(cost, weight) / u128::from(milli.max(1))).unwrap_or(u64::MAX))
}

/// What a client that was here before may use. Tokens are not work of processors: there it is a
/// tenth of what the backend can do, because a fixed number would be less than a single stream.
fn history_milli(settings: &QueueSettings) -> u64 {
    match settings.unit {
        WorkUnit::CpuTime => HISTORY_MILLI_CPUS,
        WorkUnit::Tokens => (settings.cpus_milli / 10).max(HISTORY_MILLI_CPUS),
    }
}

const STRANGERS: Place = Place::Line(Line::Strangers);

/// The line of an identity that was served, and its place there.
fn placed(stamp: Time, now: Time) -> (Place, Time) {
    let line = if stamp <= now { Line::Later } else { Line::Strangers };
    (Place::Line(line), stamp.max(now.minus(STAMP_REACH)))
}

#[cfg(test)]
mod tests;
