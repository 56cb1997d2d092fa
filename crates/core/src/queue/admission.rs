//! The queue of a backend, with the search for the number of its slots.
//!
//! A door tells this state machine what arrives, ends and runs beside the queue, and it keeps queue
//! and search in step: the search learns from each end how many requests are worth sending at once,
//! and the queue has that many slots, without those of exempt requests, which never wait. As in
//! [`Queue`], `handle_*` takes events, and `poll_*` returns their results.

pub mod engine_bound;

use super::concurrency::{CONCURRENCY_MAX, ConcurrencySearch};
use super::standing::WaitingRoomEntry;
use super::{Arrival, BriefSlots, CancelOutcome, Queue, QueueSettings, RefusedRequest, RequestId};
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos, Time};

/// The queue of a backend, with the search for the number of its slots.
pub struct Admission {
    queue: Queue,
    /// The number of requests that are sent to the backend at once: configured, or found by
    /// `search`.
    concurrency: usize,
    search: Option<ConcurrencySearch>,
    /// The slots for brief requests that `search` has found.
    brief: BriefSlots,
    /// The configured concurrency, from which a search starts.
    begins: usize,
    /// The configured number of requests that the backend can work on at once.
    workers: Option<usize>,
    /// The number of exempt requests that hold a slot without having queued.
    beside: usize,
    part: SlotPart,
    /// An upper bound of the concurrency, both of a configured one and of the search.
    bound: Option<usize>,
    /// How often the number of slots has been calculated.
    #[cfg(test)]
    pub(super) narrowed: usize,
}

/// The part of the backend's slots that a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPart {
    /// All of them.
    Whole,
    /// This many of all, because others may use the rest.
    Least(usize),
    /// As many as it asks for: another queue gives them out.
    Given,
}

/// The result for a request that has waited, or that did not have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionOutcome {
    /// The request has a slot.
    Slot(RequestId),
    /// The request is refused.
    Refused(RefusedRequest),
    /// The visitor waits elsewhere and comes back.
    WaitingRoom(WaitingRoomEntry),
}

impl AdmissionOutcome {
    /// The request.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        match self {
            AdmissionOutcome::Slot(id) => *id,
            AdmissionOutcome::Refused(refused) => refused.id,
            AdmissionOutcome::WaitingRoom(entry) => entry.id,
        }
    }
}

impl Admission {
    /// An empty queue. With `search`, the concurrency in `settings` is only where the search
    /// starts.
    #[must_use]
    pub fn new(settings: QueueSettings, search: Option<ConcurrencySearch>) -> Admission {
        let begins = settings.concurrency;
        let concurrency = search.as_ref().map_or(begins, ConcurrencySearch::concurrency);
        let mut admission = Admission {
            queue: Queue::new(QueueSettings { concurrency, ..settings }),
            concurrency,
            search,
            brief: BriefSlots::default(),
            begins,
            workers: settings.workers,
            beside: 0,
            part: SlotPart::Whole,
            bound: None,
            #[cfg(test)]
            narrowed: 0,
        };
        admission.bound_search(Time::ZERO);
        admission
    }

    /// Replaces the limits. Waiting requests keep waiting. A running search continues, unless its
    /// start has changed.
    pub fn set_settings(
        &mut self,
        settings: QueueSettings,
        search: Option<ConcurrencySearch>,
        now: Time,
    ) {
        let begins = settings.concurrency;
        if search.is_none() || self.search.is_none() || self.begins != begins {
            self.concurrency = search.as_ref().map_or(begins, ConcurrencySearch::concurrency);
            (self.search, self.brief) = (search, BriefSlots::default());
        }
        (self.begins, self.workers) = (begins, settings.workers);
        self.queue.set_settings(settings);
        self.bound_search(now);
        self.narrow();
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The number of requests that are sent to the backend at once, exempt ones included.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.concurrency.min(self.bound.unwrap_or(usize::MAX))
    }

    /// The maximum number of requests that would be sent to the backend at once without
    /// [`Admission::set_bound`]: the configured number, or the upper bound of the search.
    #[must_use]
    pub fn unbounded_concurrency(&self) -> usize {
        self.concurrency_bounds().1
    }

    /// Sets an upper bound of the concurrency, at least 1, both of a configured one and of the
    /// search; `None`: there is none. The search treats it like the number that the backend
    /// accepts.
    pub fn set_bound(&mut self, bound: Option<usize>, now: Time) {
        if self.bound != bound {
            self.bound = bound;
            self.bound_search(now);
            self.narrow();
        }
    }

    /// The bounds of the concurrency. If it is configured, both are that.
    pub(super) fn concurrency_bounds(&self) -> (usize, usize) {
        let least = self.search.as_ref().map(ConcurrencySearch::concurrency_min);
        least.map_or((self.begins, self.begins), |least| (least, CONCURRENCY_MAX))
    }

    /// Whether the concurrency is searched for.
    #[must_use]
    pub fn searches(&self) -> bool {
        self.search.is_some()
    }

    /// The number of requests with a slot, exempt ones included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.queue.in_flight() + self.beside
    }

    /// The number of requests that the backend accepts at once: the lesser of the configured number
    /// and the measured one; `None` if neither is known.
    #[must_use]
    pub fn accepted_max(&self) -> Option<usize> {
        [self.workers, self.queue.accepted_max()].into_iter().flatten().min()
    }

    /// Adds a request. Call [`Admission::poll`] afterwards, here and below.
    pub fn handle_arrival(&mut self, arrival: Arrival, now: Time) -> RequestId {
        let id = self.next_id();
        self.handle_arrival_as(id, arrival, now);
        id
    }

    /// An id for [`Admission::handle_arrival_as`].
    pub fn next_id(&mut self) -> RequestId {
        self.queue.next_id()
    }

    /// Adds a request under an id of [`Admission::next_id`], which no request has.
    pub fn handle_arrival_as(&mut self, id: RequestId, arrival: Arrival, now: Time) {
        if let Some(search) = &mut self.search {
            search.handle_arrival(now);
            self.adopt_concurrency();
        }
        self.queue.handle_arrival_as(id, arrival, now);
    }

    /// Sets the part of the slots that this queue gives out.
    pub fn set_part(&mut self, part: SlotPart, now: Time) {
        if self.part != part {
            self.part = part;
            self.bound_search(now);
            self.narrow();
        }
    }

    /// Searches from this number of slots on, which another instance has found.
    pub fn search_from(&mut self, slots: usize, now: Time) {
        if let Some(search) = &mut self.search {
            search.start_from(slots, now);
            self.adopt_concurrency();
        }
    }

    /// Sets the expected cost of a route ([`Queue::handle_estimate`]).
    pub fn handle_estimate(&mut self, route: RouteHash, estimate: Cost) {
        self.queue.handle_estimate(route, estimate);
    }

    /// A running request has cost this much so far ([`Queue::handle_progress`]).
    pub fn handle_progress(&mut self, id: RequestId, cost: Cost) {
        self.queue.handle_progress(id, cost);
    }

    /// The client of a request is gone ([`Queue::handle_cancel`]).
    pub fn handle_cancel(&mut self, id: RequestId) -> CancelOutcome {
        self.queue.handle_cancel(id)
    }

    /// Ends a request that has cost `cost`. `worked`: its route, and how long the backend worked on
    /// it, if the backend has finished it. Returns whether `cost` says something about other
    /// requests on the route ([`Queue::handle_done`]).
    pub fn handle_done(
        &mut self,
        id: RequestId,
        cost: Cost,
        worked: Option<(RouteHash, Nanos)>,
        now: Time,
    ) -> bool {
        let stayed = self.search.is_some() && self.queue.stays(id);
        let held = self.queue.ran_for(id, now);
        let is_telling = self.queue.handle_done(id, cost, now);
        if let Some((route, elapsed)) = worked {
            let waiting = self.queue.waiting() > 0;
            // A request that waited has its slot before its task is woken. The search counts it
            // from then on, so its time has to begin there too.
            let elapsed = elapsed.max(held);
            self.bound_search(now);
            match &mut self.search {
                Some(search) if stayed => search.handle_stay_end(route, elapsed),
                Some(search) => search.handle_done(route, elapsed, cost, waiting, now),
                None => {}
            }
            self.adopt_concurrency();
        }
        is_telling
    }

    /// Ends requests of an instance that is gone. Returns the number of those that were with the
    /// backend.
    pub(super) fn handle_gone(&mut self, ids: &[RequestId], now: Time) -> usize {
        self.queue.handle_gone(ids, now)
    }

    /// Considers how long requests have been with the backend. To be called a few times a second
    /// while requests wait.
    pub fn handle_ages(&mut self, now: Time) {
        // A configured concurrency includes the requests that hang.
        let search = self.search.as_ref();
        self.queue.handle_ages(now, |route, age| search.is_some_and(|one| one.stays(route, age)));
    }

    /// The processors of the backend were in use for this part of the time since the last call,
    /// from 0 to 1.
    pub fn handle_processor_use(&mut self, part: f64, now: Time) {
        if let Some(search) = &mut self.search {
            search.handle_processor_use(part, now);
            self.adopt_concurrency();
        }
    }

    /// This number of exempt requests, which never wait, take slots. Costs as much as for one.
    pub fn handle_exempt_arrivals(&mut self, count: usize) {
        self.set_beside(self.beside.saturating_add(count));
    }

    /// This number of exempt requests give their slots back. Costs as much as for one.
    pub fn handle_exempt_ends(&mut self, count: usize) {
        self.set_beside(self.beside.saturating_sub(count));
    }

    fn set_beside(&mut self, beside: usize) {
        if self.beside != beside {
            self.beside = beside;
            self.narrow();
        }
    }

    /// The time of the next [`Admission::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.queue.poll_timeout()
    }

    /// Refuses the requests that have waited for too long, and sends those to the waiting room that
    /// are due there.
    pub fn handle_timeout(&mut self, now: Time) {
        self.queue.handle_timeout(now);
    }

    /// The next request that gets a slot, or none. Call it after each event, until it returns
    /// `None`.
    pub fn poll(&mut self, now: Time) -> Option<AdmissionOutcome> {
        let outcome = self.poll_outcome(now);
        if outcome.is_none() {
            self.report_running(now);
        }
        outcome
    }

    fn poll_outcome(&mut self, now: Time) -> Option<AdmissionOutcome> {
        if let Some(id) = self.queue.poll_dispatch(now) {
            return Some(AdmissionOutcome::Slot(id));
        }
        if let Some(refused) = self.queue.poll_refused() {
            return Some(AdmissionOutcome::Refused(refused));
        }
        self.queue.poll_waiting_room().map(AdmissionOutcome::WaitingRoom)
    }

    /// Tells the search the number of requests that the backend accepts.
    fn bound_search(&mut self, now: Time) {
        if self.search.is_none() {
            return;
        }
        let part = match self.part {
            SlotPart::Least(slots) => Some(slots),
            SlotPart::Whole | SlotPart::Given => None,
        };
        let most = [part, self.accepted_max(), self.bound].into_iter().flatten().min();
        if let Some(search) = &mut self.search {
            search.set_ceiling(most, now);
            self.adopt_concurrency();
        }
    }

    /// Tells the search the number of running requests.
    fn report_running(&mut self, now: Time) {
        if let Some(search) = &mut self.search {
            search.handle_running(self.queue.in_flight() - self.queue.staying(), now);
            self.adopt_concurrency();
        }
    }

    fn adopt_concurrency(&mut self) {
        let Some(search) = &self.search else { return };
        let (found, brief) = (search.concurrency(), search.brief_slots());
        if (found, brief) != (self.concurrency, self.brief) {
            (self.concurrency, self.brief) = (found, brief);
            self.narrow();
        }
    }

    /// Subtracts the slots of exempt requests from those of the queue, which always keeps one, and
    /// their workers from those of the backend.
    fn narrow(&mut self) {
        #[cfg(test)]
        {
            self.narrowed += 1;
        }
        let left = |count: usize| match self.part {
            SlotPart::Whole => count.saturating_sub(self.beside).max(1),
            SlotPart::Least(slots) => count.min(slots).saturating_sub(self.beside).max(1),
            SlotPart::Given => CONCURRENCY_MAX,
        };
        let (concurrency, workers) = (left(self.concurrency()), self.workers.map(left));
        self.queue.set_settings(QueueSettings { concurrency, workers, ..self.queue.settings() });
        let count = self.brief.count.saturating_sub(self.beside);
        self.queue.set_brief_slots(BriefSlots { count, ..self.brief });
    }
}
