//! The admission queue before the backend: the core's fair queue behind a lock, shared by the
//! threads of a door.
//!
//! A waiting request is woken on its own thread when its turn has come. The order of requests is
//! not decided here but in `evenkeel_core::queue`. When a request asks for a slot and gives it
//! back: `turn`.

pub mod shared;
mod visitors;

use crate::replicated::queue::QueueWaker;
use arc_swap::{ArcSwapOption, Guard};
use evenkeel_core::key::KeyHash;
use evenkeel_core::meter::estimate::{LearnedCosts, RouteHash};
use evenkeel_core::queue::ClientHistory;
use evenkeel_core::queue::admission::{Admission, AdmissionOutcome};
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::queue::shared::SharedQueue;
use evenkeel_core::queue::standing::{VisitPass, WaitingRoomEntry};
use evenkeel_core::queue::work_rate::WorkRate;
use evenkeel_core::queue::{
    Arrival, CancelOutcome, QueuePlace, QueueSettings, RefusedRequest, RequestId,
};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::pressure::PressureNotice;
use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use visitors::VisitorLog;
pub use visitors::{VisitorStats, WaitingRoomCounts};

/// If no running request has ended for this time while an upload waits for a slot, the upload goes
/// on without one: the others may be waiting for the worker that it occupies. Shorter: uploads
/// overtake others where requests take long. Longer: all wait for each other.
const HANG_AFTER: Nanos = Nanos::from_secs(1);

/// The admission queue of a door. Its lock is held while [`AdmissionQueue::done`] calls `learn`,
/// and never while a task is woken. For the lock order see [`Engine`](super::Engine).
pub struct AdmissionQueue {
    state: Mutex<AdmissionState>,
    /// A copy of the queue's handle, for those that do not hold the lock.
    history: ArcSwapOption<ClientHistory>,
    /// Since when there is pressure, in nanoseconds; 0 without. It follows the queue.
    pressure: Arc<AtomicU64>,
    /// The requests of other instances with the backend. It follows the queue.
    elsewhere: Arc<AtomicUsize>,
    /// The clock by which other instances are heard.
    clock: Clock,
}

struct AdmissionState {
    queue: SharedQueue,
    /// Tells the driver of the peers that there are messages, if instances share the queue.
    wake: Option<QueueWaker>,
    /// The number of partly sent requests that have given their slot away while their clients
    /// upload.
    stalled: usize,
    /// The requests that did not get a slot at once, until each has polled its result.
    waiting: HashMap<RequestId, WaitState, RandomState>,
    /// When a running request last ended, or the first one began.
    moved: Time,
    /// When an upload last went on beside the queue.
    resumed: Time,
    visitors: VisitorLog,
    pressure: Arc<AtomicU64>,
    elsewhere: Arc<AtomicUsize>,
    rate: WorkRate,
}

enum WaitState {
    /// The request waits. Holds its waker once it has been polled, and whether the backend has a
    /// part of the request.
    Waits(Option<Waker>, bool),
    /// The request may go on, or gets no slot. In a box, because most requests here still wait.
    Ended(Box<Result<AdmittedSlot, NoSlot>>),
}

const _: () = assert!(size_of::<(RequestId, WaitState)>() <= 32, "there may be many of them");

/// The permission with which a request continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmittedSlot {
    /// A slot of the queue.
    Queue(RequestId),
    /// A slot beside the queue, which [`AdmissionQueue::leave_beside`] gives back.
    Beside,
}

/// Why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The request is refused.
    Refused(RefusedRequest),
    /// The visitor waits elsewhere and comes back.
    WaitingRoom(WaitingRoomEntry),
}

/// The answer to a request that asks for a slot.
pub enum AdmissionEntry {
    /// The request has a slot.
    Room(RequestId),
    /// The request waits in the queue.
    Waits(RequestId),
    /// The request gets no slot.
    NoSlot(NoSlot),
}

/// A snapshot of the queue's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionStats {
    /// The number of waiting requests of this instance.
    pub waiting: usize,
    /// The number of requests of this instance with a slot, exempt ones included.
    pub running: usize,
    /// The number of slots, of all instances that share the queue.
    pub concurrency: usize,
    /// The number of requests that the backend accepts at once, configured or measured, if known.
    pub taken_in: Option<usize>,
}

impl AdmissionQueue {
    /// Makes a queue with these bounds. With `search`, the concurrency in `settings` is only the
    /// start of the search.
    pub fn new(
        settings: QueueSettings,
        search: Option<ConcurrencySearch>,
        clock: Clock,
    ) -> AdmissionQueue {
        let (pressure, elsewhere) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
        let state = AdmissionState {
            queue: SharedQueue::new(Admission::new(settings, search)),
            wake: None,
            stalled: 0,
            waiting: HashMap::default(),
            moved: Time::ZERO,
            resumed: Time::ZERO,
            visitors: VisitorLog::default(),
            pressure: Arc::clone(&pressure),
            elsewhere: Arc::clone(&elsewhere),
            rate: WorkRate::default(),
        };
        let history = ArcSwapOption::from(state.queue.client_history().map(Arc::new));
        AdmissionQueue { state: Mutex::new(state), history, pressure, elsewhere, clock }
    }

    /// Applies changed bounds. Waiting requests keep waiting. A running search continues, unless
    /// its start has changed.
    pub fn reload(&self, settings: QueueSettings, search: Option<ConcurrencySearch>, now: Time) {
        let mut state = self.state.lock();
        state.queue.set_settings(settings, search, now);
        self.history.store(state.queue.client_history().map(Arc::new));
        pass(state, now);
    }

    /// The clients that the queue remembers. Takes no lock.
    pub fn history(&self) -> Guard<Option<Arc<ClientHistory>>> {
        self.history.load()
    }

    /// Since when there is pressure, if there is. Takes no lock.
    pub fn pressure_since(&self) -> Option<Time> {
        let since = self.pressure.load(Relaxed);
        (since > 0).then_some(Time(since))
    }

    /// The number of requests of other instances with the backend, as far as is known. Takes no
    /// lock.
    pub fn running_elsewhere(&self) -> usize {
        self.elsewhere.load(Relaxed)
    }

    /// The clients that the queue remembers.
    pub fn client_history(&self) -> Option<ClientHistory> {
        self.state.lock().queue.client_history()
    }

    /// A request asks for a slot. `begun`: the backend already has a part of it.
    pub fn enter(&self, arrival: Arrival, begun: bool, now: Time) -> AdmissionEntry {
        let mut state = self.state.lock();
        if state.queue.in_flight() == 0 {
            state.moved = now;
        }
        let id = state.queue.handle_arrival(arrival, now);
        let mut own = None;
        let passed = state.pass(now, |ended, how| {
            if ended == id {
                own = Some(how);
            }
        });
        let entry = match own {
            Some(Ok(_)) => AdmissionEntry::Room(id),
            Some(Err(why)) => AdmissionEntry::NoSlot(why),
            None => {
                state.waiting.insert(id, WaitState::Waits(None, begun));
                AdmissionEntry::Waits(id)
            }
        };
        drop(state);
        passed.finish();
        entry
    }

    /// The number of requests waiting here that would probably go before one of `client` that came
    /// now.
    pub fn ahead(&self, client: KeyHash, place: QueuePlace) -> usize {
        self.state.lock().queue.admission().queue().ahead(client, place)
    }

    /// Polls a waiting request: ready with its slot, or with the reason why it gets none.
    pub fn poll(&self, id: RequestId, cx: &Context<'_>) -> Poll<Result<AdmittedSlot, NoSlot>> {
        let mut state = self.state.lock();
        match state.waiting.get_mut(&id) {
            Some(WaitState::Waits(waker, _)) => {
                if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Some(WaitState::Ended(how)) => {
                let how = **how;
                state.waiting.remove(&id);
                Poll::Ready(how)
            }
            // Cannot happen. If it did, the request would still run.
            None => Poll::Ready(Ok(AdmittedSlot::Queue(id))),
        }
    }

    /// A waiting request is gone. Its slot, if it already had one, is free again.
    pub fn cancel(&self, id: RequestId, now: Time) {
        let mut state = self.state.lock();
        if let Some(WaitState::Ended(how)) = state.waiting.remove(&id)
            && *how == Ok(AdmittedSlot::Beside)
        {
            state.queue.handle_exempt_done();
        }
        if state.queue.handle_cancel(id) == CancelOutcome::Running {
            state.queue.handle_done(id, Cost::ZERO, None, now);
        }
        pass(state, now);
    }

    /// A running request has cost this much so far, which is more than was expected.
    pub fn note_progress(&self, id: RequestId, cost: Cost, now: Time) {
        let mut state = self.state.lock();
        state.queue.handle_progress(id, cost);
        pass(state, now);
    }

    /// A slot is free again, after a request that cost `cost`. `worked` holds the request's route
    /// and how long the backend worked on it, if the backend finished it. `learn` returns the
    /// estimates that this request changes. It runs with the gate locked and takes the lock of the
    /// estimates, so it must not call the gate.
    pub fn done(
        &self,
        id: RequestId,
        cost: Cost,
        worked: Option<(RouteHash, Nanos)>,
        learn: impl FnOnce() -> LearnedCosts,
        now: Time,
    ) {
        let mut state = self.state.lock();
        state.moved = now;
        let telling = state.queue.handle_done(id, cost, worked, now);
        // Lock order: the gate is locked, and `learn` locks the estimates.
        if telling {
            for (route, estimate) in learn().into_iter().flatten() {
                state.queue.handle_estimate(route, estimate);
            }
        }
        pass(state, now);
    }

    /// Notes the total cost of all requests so far, to measure the rate of the work. Call it a few
    /// times a second.
    pub fn note_total(&self, total: Cost, now: Time) {
        let mut state = self.state.lock();
        let waiting = state.queue.waiting() > 0;
        state.rate.handle_total(total, waiting, now);
    }

    /// The work that the backend does in a second while requests wait, in units of 10^9, as far as
    /// requests of this instance show it.
    pub fn work_rate(&self) -> Option<f64> {
        self.state.lock().rate.per_second()
    }

    /// Whether another instance owns the queue, so that a request that could run waits for its
    /// answer.
    pub fn asks_elsewhere(&self) -> bool {
        !self.state.lock().queue.is_owner()
    }

    /// Whether the concurrency is searched for.
    pub fn searches(&self) -> bool {
        self.state.lock().queue.admission().searches()
    }

    /// The processors of the backend were in use for this part of the time since the last call.
    pub fn handle_processor_use(&self, part: f64, now: Time) {
        let mut state = self.state.lock();
        state.queue.handle_processor_use(part, now);
        pass(state, now);
    }

    /// The maximum number of slots without [`AdmissionQueue::set_bound`].
    pub fn unbounded_slots(&self) -> usize {
        self.state.lock().queue.admission().unbounded_concurrency()
    }

    /// Sets an upper bound of the number of slots; `None`: there is none.
    pub fn set_bound(&self, bound: Option<usize>, now: Time) {
        let mut state = self.state.lock();
        state.queue.set_bound(bound, now);
        pass(state, now);
    }

    /// Refuses requests that have waited for too long, and gives slots to those that wait behind
    /// requests that hang. Call it a few times a second.
    pub fn expire(&self, now: Time) {
        let mut state = self.state.lock();
        let queue = &state.queue;
        // Requests of other instances may wait here.
        let waits = queue.waiting() > 0 || queue.admission().queue().waiting() > 0;
        // The pressure ends some time after the last request has waited.
        if !waits && queue.pressure_since().is_none() {
            return;
        }
        state.queue.handle_ages(now);
        let resumed = state.resume_begun(now);
        pass(state, now);
        resumed.into_iter().for_each(Waker::wake);
    }

    /// An exempt request, which never waits, takes a slot.
    pub fn enter_beside(&self) {
        let mut state = self.state.lock();
        state.queue.handle_exempt_arrival();
        let wake = state.wake_for_messages();
        drop(state);
        wake.iter().for_each(|wake| wake());
    }

    /// An exempt request gives its slot back.
    pub fn leave_beside(&self, now: Time) {
        let mut state = self.state.lock();
        state.queue.handle_exempt_done();
        pass(state, now);
    }

    /// The backend waits for the rest of a request of `client`, so the request may give its slot
    /// away. Returns false if stalled requests are as numerous as slots and no other client waits:
    /// then the request keeps its slot.
    pub fn stall(&self, client: KeyHash) -> bool {
        let mut state = self.state.lock();
        let room = state.stalled < state.queue.slots() || state.queue.others_wait(client);
        state.stalled += usize::from(room);
        room
    }

    /// A stalled request is complete, or has ended.
    pub fn end_stall(&self) {
        let mut state = self.state.lock();
        state.stalled = state.stalled.saturating_sub(1);
    }

    /// The pass of the visitor with a request in this slot, if it has a ticket or a pass.
    pub fn pass_of(&self, id: RequestId) -> Option<VisitPass> {
        self.state.lock().queue.visit(id).pass
    }

    /// Notes that a request with a ticket has got this slot. Returns the time since the visitor
    /// first came, if this is its first page.
    pub fn note_newcomer(&self, id: RequestId, now: Time) -> Option<Nanos> {
        let mut state = self.state.lock();
        let wait = now.since(state.queue.visit(id).newcomer_since?);
        state.visitors.serve(wait);
        Some(wait)
    }

    /// What is known of strangers and visitors. If another instance owns the queue, that has the
    /// figures of strangers and of waiting visitors.
    pub fn visitor_stats(&self, now: Time) -> VisitorStats {
        let state = self.state.lock();
        let report = state.queue.admission().queue().standing_report();
        let pressure_since = state.queue.pressure_since();
        VisitorStats { pressure_since, ..state.visitors.stats(report, now) }
    }

    /// Whether requests are waiting for a slot, or for the backend: none has ended for `hang`,
    /// although some run.
    pub fn is_crowded(&self, hang: Nanos, now: Time) -> bool {
        let state = self.state.lock();
        state.queue.waiting() > 0 || state.hangs(hang, now)
    }

    pub fn stats(&self) -> AdmissionStats {
        let queue = &self.state.lock().queue;
        AdmissionStats {
            waiting: queue.waiting(),
            running: queue.running(),
            concurrency: queue.slots(),
            taken_in: queue.admission().accepted_max(),
        }
    }
}

impl AdmissionState {
    /// Whether requests run and none has ended for `hang`. Those that stay for long do not count.
    fn hangs(&self, hang: Nanos, now: Time) -> bool {
        let staying = self.queue.admission().queue().staying();
        self.queue.in_flight() > staying && now.since(self.moved) >= hang
    }

    /// If the running requests hang, lets the first waiting request go on that the backend already
    /// has in part. Returns its waker.
    fn resume_begun(&mut self, now: Time) -> Option<Waker> {
        if !self.hangs(HANG_AFTER, now) || now.since(self.resumed) < HANG_AFTER {
            return None;
        }
        let begun = |state: &WaitState| matches!(state, WaitState::Waits(_, true));
        let begun = self.waiting.iter().filter(|(_, state)| begun(state));
        let id = *begun.map(|(id, _)| id).min()?;
        self.queue.handle_cancel(id);
        self.resumed = now;
        self.queue.handle_exempt_arrival();
        match self.waiting.insert(id, WaitState::Ended(Box::new(Ok(AdmittedSlot::Beside)))) {
            Some(WaitState::Waits(waker, _)) => waker,
            _ => None,
        }
    }

    /// The result for a request, and its part in the operators' figures.
    fn slot(&mut self, outcome: AdmissionOutcome, now: Time) -> Result<AdmittedSlot, NoSlot> {
        match outcome {
            AdmissionOutcome::Slot(id) => Ok(AdmittedSlot::Queue(id)),
            AdmissionOutcome::Refused(refused) => Err(NoSlot::Refused(refused)),
            AdmissionOutcome::WaitingRoom(entry) => {
                self.visitors.send(entry.needs_ticket, entry.come_back_after, now);
                Err(NoSlot::WaitingRoom(entry))
            }
        }
    }

    /// Gives out free slots and refuses overdue requests, and calls `heard` with each result. The
    /// caller must unlock the gate and then finish the result.
    fn pass(
        &mut self,
        now: Time,
        mut heard: impl FnMut(RequestId, Result<AdmittedSlot, NoSlot>),
    ) -> Passed {
        self.queue.handle_timeout(now);
        let mut woken = Vec::new();
        while let Some(outcome) = self.queue.poll(now) {
            let (id, how) = (outcome.id(), self.slot(outcome, now));
            heard(id, how);
            if let Some(fate) = self.waiting.get_mut(&id)
                && let WaitState::Waits(Some(waker), _) =
                    std::mem::replace(fate, WaitState::Ended(Box::new(how)))
            {
                woken.push(waker);
            }
        }
        self.elsewhere.store(self.queue.running_elsewhere(), Relaxed);
        let queue = &self.queue;
        let report = || queue.admission().queue().standing_report();
        let since = queue.pressure_since();
        let notice = self.visitors.handle_pressure(since, report, now);
        let notice = notice.map(|notice| shared::notice_of(queue, notice));
        if notice.is_some() {
            self.pressure.store(since.map_or(0, |since| since.0), Relaxed);
        }
        Passed { woken, notice, wake: self.wake_for_messages() }
    }

    /// What is to be called once the gate is unlocked, if there are messages for other instances.
    fn wake_for_messages(&self) -> Option<QueueWaker> {
        self.wake.clone().filter(|_| self.queue.has_messages())
    }
}

/// What is left to do once the gate is unlocked.
#[must_use]
struct Passed {
    /// The tasks that have a result.
    woken: Vec<Waker>,
    notice: Option<PressureNotice>,
    wake: Option<QueueWaker>,
}

impl Passed {
    fn finish(self) {
        self.woken.into_iter().for_each(Waker::wake);
        self.notice.iter().for_each(PressureNotice::log);
        self.wake.iter().for_each(|wake| wake());
    }
}

/// Gives out free slots, unlocks the gate and only then wakes the tasks, so that they do not run
/// into the lock.
fn pass(mut state: MutexGuard<'_, AdmissionState>, now: Time) {
    let passed = state.pass(now, |_, _| ());
    drop(state);
    passed.finish();
}
