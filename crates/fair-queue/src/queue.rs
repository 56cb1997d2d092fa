//! The queue: the core's admission queue behind a lock, with the accounts of clients and the usual
//! costs of requests.
//!
//! A request that finds a free slot takes the lock twice and wakes no task. The lock is never held
//! while a task is woken.

pub mod settings;
pub mod waiting;

use evenkeel_core::classify::prefix::hash;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::meter::estimate::{Estimates, RouteHash};
pub use evenkeel_core::queue::RefusalCause;
use evenkeel_core::queue::admission::{Admission, AdmissionOutcome};
use evenkeel_core::queue::standing::Visit;
use evenkeel_core::queue::{
    Arrival, CancelOutcome, DebtFlow, QueuePlace, RefusedRequest, RequestId,
};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};
use parking_lot::{Mutex, MutexGuard};
use settings::{FairQueueSettings, nanos};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::Waker;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::time::Instant;
use waiting::WaitingSlot;

/// The number of kinds of requests with a learned cost, 56 bytes each.
const KINDS_MAX: usize = 4_096;
/// The upper bound of `wait_max`, so that deadlines can be represented.
const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How often the ages of running requests are considered while others wait.
const AGES_INTERVAL: Nanos = Nanos::from_millis(250);
/// Requests wait for their place in the queue, never for a limit.
const POLICY: LimiterPolicy = LimiterPolicy { action: LimitAction::Queue, max_delay: Nanos::ZERO };

/// A fair queue. Its clones are the same queue.
#[derive(Clone)]
pub struct FairQueue(Arc<QueueInner>);

struct QueueInner {
    limiter: Limiter,
    wait_max: Duration,
    started: Instant,
    state: Mutex<QueueState>,
}

struct QueueState {
    admission: Admission,
    /// The usual cost of a kind of request.
    estimates: Estimates,
    /// The requests that did not get a slot at once, until each has polled its result.
    waiting: HashMap<RequestId, WaitState>,
    ages_considered: Time,
    refused: u64,
}

enum WaitState {
    /// The request waits. Holds its waker once it has been polled.
    Waits(Option<Waker>),
    /// The request has a slot, or is refused.
    Ended(Result<(), QueueRefusal>),
}

/// A request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fair queue refuses the request because of `{}`", cause.name())]
pub struct QueueRefusal {
    /// The time until those requests of its client that wait will have been served, as estimated.
    pub retry_after: Duration,
    /// The setting that was exceeded.
    pub cause: RefusalCause,
}

/// A snapshot of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FairQueueStats {
    /// The number of requests that wait.
    pub waiting: usize,
    /// The number of requests that run.
    pub running: usize,
    /// The number of requests that may run at once.
    pub slots: usize,
    /// The number of requests that have been refused so far.
    pub refused: u64,
}

/// A request as the queue distinguishes it.
#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    client: KeyHash,
    kind: RouteHash,
}

impl FairQueue {
    /// Makes a queue. A setting out of its range is replaced by the nearest possible one.
    #[must_use]
    pub fn new(settings: FairQueueSettings) -> FairQueue {
        let cpus = available_parallelism().map_or(1, usize::from);
        let state = QueueState {
            admission: Admission::new(settings.bounds(cpus), settings.search(cpus)),
            estimates: Estimates::new(KINDS_MAX),
            waiting: HashMap::new(),
            ages_considered: Time::ZERO,
            refused: 0,
        };
        FairQueue(Arc::new(QueueInner {
            limiter: Limiter::new(POLICY, vec![settings.limit(cpus)], seed()),
            wait_max: settings.wait_max.min(WAIT_MAX),
            started: Instant::now(),
            state: Mutex::new(state),
        }))
    }

    /// Waits for the turn of `client`, a name for all that should be treated as one: a tenant, a
    /// user, an API key. Requests of equal `kind` usually cost the same, as those to one method and
    /// path do. The place in the queue is taken now, not when the result is first polled; dropping
    /// it gives up the place.
    pub fn enter(&self, client: &[u8], kind: &str) -> WaitingSlot {
        self.enter_as(client, RouteHash::of(self.0.limiter.seed(), "", kind))
    }

    /// As [`FairQueue::enter`], for requests with a method and a path. Words in the path that look
    /// like identifiers make no difference.
    pub(crate) fn enter_http(&self, client: &[u8], method: &str, path: &str) -> WaitingSlot {
        self.enter_as(client, RouteHash::of(self.0.limiter.seed(), method, path))
    }

    fn enter_as(&self, client: &[u8], kind: RouteHash) -> WaitingSlot {
        let request = QueuedRequest { client: hash(client, self.0.limiter.seed()), kind };
        let now = self.now();
        let owes = self.0.limiter.is_in_debt(0, request.client, now);
        let mut state = self.0.state.lock();
        let arrival = state.arrival(request, owes);
        let id = state.admission.handle_arrival(arrival, now);
        let mut own = None;
        let woken = state.pass(now, |ended, how| {
            if ended == id {
                own = Some(how);
            }
        });
        if own.is_none() {
            state.waiting.insert(id, WaitState::Waits(None));
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        match own {
            Some(result) => WaitingSlot::ended(result.map(|()| self.slot(id, request, now))),
            None => WaitingSlot::new(self.clone(), id, request, Instant::now() + self.0.wait_max),
        }
    }

    /// The present state, for metrics.
    #[must_use]
    pub fn stats(&self) -> FairQueueStats {
        let state = self.0.state.lock();
        FairQueueStats {
            waiting: state.admission.queue().waiting(),
            running: state.admission.running(),
            slots: state.admission.concurrency(),
            refused: state.refused,
        }
    }

    fn now(&self) -> Time {
        // Zero stands for `never` in some places of the core.
        Time(nanos(self.0.started.elapsed()).0.max(1))
    }

    fn slot(&self, id: RequestId, request: QueuedRequest, since: Time) -> Slot {
        Slot { queue: self.clone(), id, request, since, cost: None }
    }

    /// Turns away requests that have waited for too long, and considers those that run for long.
    fn expire(&self) {
        let now = self.now();
        self.pass(self.0.state.lock(), now);
    }

    /// A request does not wait any more. If it still had its place, or a slot that it has not
    /// seen, the others get it.
    fn leave(&self, id: RequestId) {
        let now = self.now();
        let mut state = self.0.state.lock();
        if state.waiting.remove(&id).is_none() {
            return;
        }
        if state.admission.handle_cancel(id) == CancelOutcome::Running {
            state.admission.handle_done(id, Cost::ZERO, None, now);
        }
        self.pass(state, now);
    }

    /// Gives out free slots, unlocks the queue and only then wakes the tasks, so that they do not
    /// run into the lock.
    fn pass(&self, mut state: MutexGuard<'_, QueueState>, now: Time) {
        let woken = state.pass(now, |_, _| ());
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl QueueState {
    fn arrival(&self, request: QueuedRequest, owes: bool) -> Arrival {
        let QueuedRequest { client, kind } = request;
        let forecast = self.estimates.forecast(kind, None);
        let flow = DebtFlow { limit: 0, hash: client };
        Arrival {
            client,
            place: if owes { QueuePlace::Debt(flow) } else { QueuePlace::Credit },
            estimate: forecast.cost,
            is_guess: forecast.is_guess,
            route: Some(kind),
            own: None,
            weight: Weight::ONE,
            visit: Visit::Unknown,
            accepts_waiting_page: false,
            burns: false,
        }
    }

    /// Gives out free slots and refuses overdue requests, and calls `heard` with each result.
    /// Returns the tasks that have a result, to be woken once the queue is unlocked.
    fn pass(
        &mut self,
        now: Time,
        mut heard: impl FnMut(RequestId, Result<(), QueueRefusal>),
    ) -> Vec<Waker> {
        if !self.waiting.is_empty() && now.since(self.ages_considered) >= AGES_INTERVAL {
            self.ages_considered = now;
            self.admission.handle_ages(now);
        }
        self.admission.handle_timeout(now);
        let mut woken = Vec::new();
        while let Some(outcome) = self.admission.poll(now) {
            let result = match outcome {
                AdmissionOutcome::Refused(RefusedRequest { retry_after, cause, .. }) => {
                    self.refused += 1;
                    let retry_after = Duration::from_nanos(retry_after.0);
                    Err(QueueRefusal { retry_after, cause })
                }
                // No request accepts a waiting page.
                AdmissionOutcome::Slot(_) | AdmissionOutcome::WaitingRoom(_) => Ok(()),
            };
            heard(outcome.id(), result);
            if let Some(state) = self.waiting.get_mut(&outcome.id())
                && let WaitState::Waits(Some(waker)) =
                    std::mem::replace(state, WaitState::Ended(result))
            {
                woken.push(waker);
            }
        }
        woken
    }
}

/// The right to run. Dropping it gives the slot to the next request and charges the client.
#[must_use = "dropping a slot gives it back"]
pub struct Slot {
    queue: FairQueue,
    id: RequestId,
    request: QueuedRequest,
    since: Time,
    cost: Option<Cost>,
}

impl Slot {
    /// States what the request has cost, in time of a slot. Without this it costs the time for
    /// which the slot is held.
    pub fn set_cost(&mut self, cost: Duration) {
        self.cost = Some(Cost::cpu(nanos(cost)));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let QueueInner { limiter, state, .. } = &*self.queue.0;
        let QueuedRequest { client, kind } = self.request;
        let now = self.queue.now();
        let elapsed = now.since(self.since);
        let cost = self.cost.unwrap_or(Cost::cpu(elapsed));
        limiter.absorb(0, client, cost, now, now);
        let mut state = state.lock();
        if state.admission.handle_done(self.id, cost, Some((kind, elapsed)), now) {
            let learned = state.estimates.learn_request(kind, None, cost, now);
            for (kind, estimate) in learned.into_iter().flatten() {
                state.admission.handle_estimate(kind, estimate);
            }
        }
        self.queue.pass(state, now);
    }
}

/// Numbers that clients cannot guess, so that they cannot choose names with equal hashes.
fn seed() -> KeySeed {
    let number = || RandomState::new().hash_one(0_u8).to_le_bytes();
    let (first, last) = (number(), number());
    KeySeed(std::array::from_fn(|at| if at < 8 { first[at] } else { last[at - 8] }))
}
