//! The part of the queue that deals with visitors: where a request stands, when the pressure
//! begins, which requests are sent to the waiting room, and what is shown of all this.
//!
//! What is known of clients: `known_clients`. The order of service: `tiers` and `lines`. The types
//! that a door exchanges with the queue: `standing`.

use super::known_clients::{ClientHistory, Known, LineAccount, Standing};
use super::place::{Line, Place};
use super::request::{Arrival, RefusalCause, RequestId};
use super::share::{QueuedShare, WaitingRequest};
use super::standing::{ByLine, StandingReport, VisitPass, WaitingRoomEntry};
use super::waiting_room::VisitorPace;
use super::{Queue, RETRY_AFTER_MAX, pressure, waiting_room};
use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Time};
use alloc::vec::Vec;

/// The counts of each line since the queue was created, and the pace of visitors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitCounts {
    waiting: ByLine<usize>,
    served: ByLine<Cost>,
    sent_to_waiting_room: u64,
    pace: VisitorPace,
    /// When the queue last noted its work.
    now: Time,
}

impl VisitCounts {
    pub fn join(&mut self, place: Place) {
        if let Some(count) = self.waiting.of(place) {
            *count += 1;
        }
    }

    pub fn leave(&mut self, place: Place) {
        if let Some(count) = self.waiting.of(place) {
            *count = count.saturating_sub(1);
        }
    }

    pub fn serve(&mut self, share: &QueuedShare, now: Time) {
        if share.place == Place::Line(Line::First) {
            self.pace.serve(share.account.base, now);
        }
    }

    pub fn handle_done(&mut self, place: Place, cost: Cost) {
        if let Some(served) = self.served.of(place) {
            *served = served.plus(cost);
        }
    }
}

impl<T> ByLine<T> {
    /// The value of a place; there is none for clients in debt.
    fn of(&mut self, place: Place) -> Option<&mut T> {
        match place {
            Place::Credit => Some(&mut self.history),
            Place::Line(Line::First) => Some(&mut self.first),
            Place::Line(Line::Later) => Some(&mut self.later),
            Place::Line(Line::Strangers) => Some(&mut self.strangers),
            Place::Line(Line::Burning) => Some(&mut self.burning),
            Place::Debt(_) => None,
        }
    }
}

impl Queue {
    /// The next request to answer with a waiting page, if there is one. Call it whenever
    /// [`Queue::poll_refused`] is called.
    pub fn poll_waiting_room(&mut self) -> Option<WaitingRoomEntry> {
        self.waiting_room.poll()
    }

    /// The pass that the visitor gets with the response, if the request is with the backend and
    /// stands by a ticket or a pass. To be asked when the response begins, and to be sent at least
    /// when the request came with a ticket.
    #[must_use]
    pub fn pass_of(&self, id: RequestId) -> Option<VisitPass> {
        let LineAccount { visit, known_as, base, .. } = self.running.get(&id)?.account;
        let id = visit?;
        let stamp = self.known.as_ref()?.stamp(known_as).unwrap_or(base);
        Some(VisitPass { id, stamp })
    }

    /// When the visitor of a request first came, if the request is with the backend and is the
    /// visitor's first page, for which it has waited with a ticket.
    #[must_use]
    pub fn newcomer_since(&self, id: RequestId) -> Option<Time> {
        let share = self.running.get(&id)?;
        (share.place == Place::Line(Line::First)).then_some(share.account.base)
    }

    /// Since when there has been pressure, if there is ([`standing`](super::standing)).
    #[must_use]
    pub fn pressure_since(&self) -> Option<Time> {
        self.known.as_ref()?.pressure.since()
    }

    /// The clients that are remembered; `None` if clients are not distinguished.
    #[must_use]
    pub fn client_history(&self) -> Option<ClientHistory> {
        self.known.as_ref().map(Known::history)
    }

    /// The figures of the lines for operators. It only costs a copy.
    #[must_use]
    pub fn standing_report(&self) -> StandingReport {
        let VisitCounts { waiting, served, sent_to_waiting_room, .. } = self.visits;
        let pressure_since = self.pressure_since();
        StandingReport { pressure_since, waiting, served, sent_to_waiting_room }
    }

    /// Where a request stands.
    pub(super) fn standing_of(&self, arrival: &Arrival, now: Time) -> Standing {
        let in_use = |client| self.clients.contains_key(&client);
        let Some(known) = &self.known else {
            return Standing::plain(arrival.client, arrival.place, now);
        };
        known.standing(arrival, in_use, now)
    }

    /// Notes that a request gets its turn: charges its estimate where its client is known.
    pub(super) fn note_turn(&mut self, share: &mut QueuedShare, now: Time) {
        self.visits.serve(share, now);
        if let Some(known) = &self.known {
            share.charged = share.estimate;
            known.handle_dispatch(&share.charge(share.estimate), share.account.base, now);
        }
    }

    /// Notes that a request has ended and has cost `cost`.
    pub(super) fn note_cost(&mut self, share: &QueuedShare, cost: Cost) {
        self.visits.handle_done(share.place, cost);
        if let Some(known) = &self.known
            && share.account.milli > 0
        {
            known.correct(&share.charge(share.charged), &share.charge(cost));
        }
    }

    /// Notes how much work waits. When the pressure begins, requests that wait in credit move to
    /// where those stand that come later, and those that run count as what they would be then.
    pub(super) fn note_work(&mut self, now: Time) {
        let Some(known) = &mut self.known else { return };
        self.visits.now = now;
        let (work, _) = self.tiers.work();
        if !known.pressure.handle_work(pressure::time_for(work, self.settings.cpus_milli), now) {
            return;
        }
        self.visits.pace = VisitorPace::default();
        let is_stranger = |share: &&mut QueuedShare| {
            let (place, ..) = known.standing_at_onset(share.client, now, now);
            share.place == Place::Credit && !share.is_stranger && place != Place::Credit
        };
        for share in self.running.values_mut().filter(is_stranger) {
            share.is_stranger = true;
            self.tiers.note_stranger();
        }
        let is_credit = |client: &&KeyHash| {
            self.clients.get(*client).is_some_and(|client| client.place == Place::Credit)
        };
        let clients: Vec<KeyHash> = self.clients.keys().filter(is_credit).copied().collect();
        clients.into_iter().for_each(|client| self.move_to_line(client, now));
    }

    /// Moves the waiting requests of a client in credit to where they stand under pressure.
    fn move_to_line(&mut self, client: KeyHash, now: Time) {
        let mut next = self.first_of(client);
        while let Some(id) = next {
            next = self.waiting.after(id);
            let (Some(known), Some(waiting)) = (&self.known, self.waiting.get_mut(id)) else {
                return;
            };
            if waiting.place == Place::Credit {
                let (place, base, milli) = known.standing_at_onset(client, waiting.since, now);
                self.visits.leave(waiting.place);
                waiting.place = place;
                waiting.set_account(LineAccount { base, milli, ..waiting.account() });
                self.visits.join(place);
                self.waiting_room.join(id, waiting);
            }
        }
        self.refresh(client);
    }

    /// Gives the next request of an identity that has been served since it came the place in line
    /// that the identity now has. Otherwise it would gain by being sent again, and a visitor with
    /// many requests at once would go before all others with each of them. A visitor stays in its
    /// line unless a better one is open to it.
    pub(super) fn reconsider(&mut self, client: KeyHash) {
        let (Some(known), Some(next)) = (&self.known, self.first_of(client)) else { return };
        let Some(waiting) = self.waiting.get_mut(next) else { return };
        let (place, account) = (waiting.place, waiting.account());
        let (Place::Line(before), Some(stamp)) = (place, known.stamp(account.known_as)) else {
            return;
        };
        let is_better = before != Line::Burning && stamp <= self.visits.now;
        let line = if is_better { Line::Later } else { before };
        if before == Line::First || (line, stamp) == (before, account.base) {
            return;
        }
        self.waiting_room.leave(next, waiting);
        self.visits.leave(place);
        waiting.place = Place::Line(line);
        waiting.set_account(LineAccount { base: stamp, ..account });
        self.visits.join(waiting.place);
        self.waiting_room.join(next, waiting);
    }

    /// Whether the lines hold so much work that visitors are sent to the waiting room.
    pub(super) fn lines_are_long(&self) -> bool {
        let (_, work) = self.tiers.work();
        pressure::time_for(work, self.settings.cpus_milli) > waiting_room::WORK_MIN
    }

    /// The next request to send to the waiting room.
    fn due_in_waiting_room(&self, now: Time) -> Option<RequestId> {
        if self.waiting_room.is_empty() {
            return None;
        }
        let is_long = self.lines_are_long();
        let crowd = self.settings.len_max / 4 * 3;
        let is_crowded = self.waiting.len() > crowd;
        let newest = || self.waiting_room.newest(crowd).filter(|_| is_long && is_crowded);
        self.waiting_room.next_due(is_long, now).or_else(newest)
    }

    /// Sends those to the waiting room that are due there.
    pub(super) fn fill_waiting_room(&mut self, now: Time) {
        let mut due = self.due_in_waiting_room(now);
        while let Some(id) = due {
            due = self.send_to_waiting_room(id, now).and_then(|()| self.due_in_waiting_room(now));
        }
    }

    /// Removes a request from the full queue: sends it to the waiting room if it may be, and
    /// refuses it otherwise. A refused visitor would have no place in line.
    pub(super) fn turn_away(&mut self, id: RequestId) {
        if self.waiting.get(id).is_some_and(waiting_room::admits) {
            _ = self.send_to_waiting_room(id, self.visits.now);
        } else {
            self.refuse(id, RefusalCause::LenMax);
        }
    }

    /// `None` if the request does not wait.
    fn send_to_waiting_room(&mut self, id: RequestId, now: Time) -> Option<()> {
        let waiting = self.remove(id)?;
        let entry = waiting_room::entry(id, &waiting, now);
        let expected_wait = self.expected_wait(&waiting, &entry, now);
        self.visits.sent_to_waiting_room += 1;
        self.waiting_room.send(WaitingRoomEntry { expected_wait, ..entry });
        Some(())
    }

    /// The time until the turn of a visitor that is sent to the waiting room.
    fn expected_wait(
        &mut self,
        waiting: &WaitingRequest,
        entry: &WaitingRoomEntry,
        now: Time,
    ) -> Nanos {
        let LineAccount { base, visit, .. } = waiting.account();
        let wait = match waiting.place {
            place if visit.is_none() || place == Place::Line(Line::First) => {
                let waits = self.tiers.waiting(Place::Line(Line::First)) > 0;
                if waits { self.visits.pace.time_until(entry.first_came) } else { Nanos::ZERO }
            }
            // A pass, of which the stamp may be in the future.
            _ => {
                let work = self.tiers.work_until_later();
                let slots = self.settings.concurrency;
                base.since(now).plus(self.lines_pace.time_for(work, slots))
            }
        };
        wait.clamp(entry.come_back_after, RETRY_AFTER_MAX)
    }
}
