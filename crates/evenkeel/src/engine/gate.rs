//! Room before the backend: the core's fair queue, shared by the threads of a door.
//!
//! Whoever waits is woken when its turn has come, on whichever thread it waits. Nothing is decided
//! here: who goes next is `evenkeel_core::queue`'s word. When a request asks for room, and gives it
//! back: `turn`.

use evenkeel_core::key::KeyHash;
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::queue::concurrency::Concurrency;
use evenkeel_core::queue::{Arrival, Cancelled, Id, Queue, Settings};
use evenkeel_core::units::{Cost, Nanos, Time};
use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::task::{Context, Poll, Waker};

/// The queue of a door.
pub struct Gate(Mutex<State>);

struct State {
    queue: Queue,
    /// How many requests the backend is sent at once, found by measuring where nobody said.
    concurrency: usize,
    search: Option<Concurrency>,
    /// Where a search begins.
    begins: usize,
    /// Requests that hold a slot but stand in no queue.
    beside: usize,
    /// Requests without a slot that the backend has a part of.
    stalled: usize,
    /// What has become of those that found no room at once, until they hear of it.
    waiting: HashMap<Id, Fate, RandomState>,
}

enum Fate {
    /// It waits; whom to wake, once somebody has asked.
    Waits(Option<Waker>),
    /// It has a slot, or is refused and may come again after this.
    Ended(Result<(), Nanos>),
}

/// What becomes of a request that asks for room.
pub enum Entry {
    /// It has a slot.
    Room(Id),
    /// It waits.
    Waits(Id),
    /// There is no place to wait in, until after this.
    Full(Nanos),
}

/// What the queue looks like from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests with a slot.
    pub running: usize,
    /// Slots.
    pub concurrency: usize,
    /// How many the backend is seen to take in, where that is known.
    pub taken_in: Option<usize>,
}

impl Gate {
    /// With these bounds; `search`: the concurrency in them is where a search begins.
    pub fn new(settings: Settings, search: Option<Concurrency>) -> Gate {
        let concurrency = search.as_ref().map_or(settings.concurrency, Concurrency::concurrency);
        let queue = Queue::new(Settings { concurrency, ..settings });
        let begins = settings.concurrency;
        let (beside, stalled, waiting) = (0, 0, HashMap::default());
        Gate(Mutex::new(State { queue, concurrency, search, begins, beside, stalled, waiting }))
    }

    /// Takes over changed bounds; who waits, waits on. A search that runs goes on, unless it was to
    /// begin elsewhere.
    pub fn reload(&self, settings: Settings, search: Option<Concurrency>, now: Time) {
        let mut state = self.0.lock();
        let begins = settings.concurrency;
        if search.is_none() || state.search.is_none() || state.begins != begins {
            state.concurrency = search.as_ref().map_or(begins, Concurrency::concurrency);
            state.search = search;
        }
        state.begins = begins;
        state.queue.set_settings(settings);
        state.narrow();
        pass(state, now);
    }

    /// A request asks for room.
    pub fn enter(&self, arrival: Arrival, now: Time) -> Entry {
        let mut state = self.0.lock();
        let id = state.queue.handle_arrival(arrival, now);
        let mut own = None;
        let woken = state.pass(now, |ended, how| {
            if ended == id {
                own = Some(how);
            }
        });
        let entry = match own {
            Some(Ok(())) => Entry::Room(id),
            Some(Err(retry_after)) => Entry::Full(retry_after),
            None => {
                state.waiting.insert(id, Fate::Waits(None));
                Entry::Waits(id)
            }
        };
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        entry
    }

    /// Whether the turn of a request that waits has come.
    pub fn poll(&self, id: Id, cx: &Context<'_>) -> Poll<Result<Id, Nanos>> {
        let mut state = self.0.lock();
        match state.waiting.get_mut(&id) {
            Some(Fate::Waits(waker)) => {
                if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Some(Fate::Ended(how)) => {
                let how = *how;
                state.waiting.remove(&id);
                Poll::Ready(how.map(|()| id))
            }
            // Never so; a request is not lost for it.
            None => Poll::Ready(Ok(id)),
        }
    }

    /// Nobody waits for this turn any more.
    pub fn cancel(&self, id: Id, now: Time) {
        let mut state = self.0.lock();
        state.waiting.remove(&id);
        if state.queue.handle_cancel(id) == Cancelled::Running {
            state.queue.handle_done(id, Cost::ZERO);
        }
        pass(state, now);
    }

    /// A slot is free again, after `cost`. `worked`: for how long the backend worked on what
    /// route, if it came to the end of it. `learn` is asked what requests on which route are taken
    /// to cost from now on, if this one says something of others.
    pub fn done(
        &self,
        id: Id,
        cost: Cost,
        worked: Option<(RouteHash, Nanos)>,
        learn: impl FnOnce() -> Option<(RouteHash, Cost)>,
        now: Time,
    ) {
        let mut state = self.0.lock();
        let telling = state.queue.handle_done(id, cost);
        if let Some((route, elapsed)) = worked {
            state.learn(route, elapsed, now);
        }
        if telling && let Some((route, estimate)) = learn() {
            state.queue.handle_estimate(route, estimate);
        }
        pass(state, now);
    }

    /// Refuses who has waited for too long. To be called a few times a second.
    pub fn expire(&self, now: Time) {
        let state = self.0.lock();
        if state.queue.waiting() > 0 {
            pass(state, now);
        }
    }

    /// A request that never waits holds a slot from now on.
    pub fn enter_beside(&self) {
        let mut state = self.0.lock();
        state.beside += 1;
        state.narrow();
    }

    /// It does not any more.
    pub fn leave_beside(&self, now: Time) {
        let mut state = self.0.lock();
        state.beside = state.beside.saturating_sub(1);
        state.narrow();
        pass(state, now);
    }

    /// The backend waits for the rest of a request of `client`, which gives its slot to others.
    /// False if as many as there are slots do so already, and nobody else waits: it keeps its slot.
    pub fn stall(&self, client: KeyHash) -> bool {
        let mut state = self.0.lock();
        let room = state.stalled < state.concurrency || state.queue.others_wait(client);
        state.stalled += usize::from(room);
        room
    }

    /// The backend has the rest of it, or gets no more.
    pub fn goes_on(&self) {
        let mut state = self.0.lock();
        state.stalled = state.stalled.saturating_sub(1);
    }

    /// Whether requests wait for room.
    pub fn is_crowded(&self) -> bool {
        self.0.lock().queue.waiting() > 0
    }

    pub fn crowd(&self) -> Crowd {
        let state = self.0.lock();
        let running = state.queue.in_flight() + state.beside;
        Crowd {
            waiting: state.queue.waiting(),
            running,
            concurrency: state.concurrency,
            taken_in: state.queue.taken_in(),
        }
    }
}

impl State {
    fn learn(&mut self, route: RouteHash, elapsed: Nanos, now: Time) {
        let waiting = self.queue.waiting() > 0;
        let Some(search) = &mut self.search else { return };
        search.set_most(self.queue.taken_in(), now);
        search.handle_done(route, elapsed, waiting, now);
        let found = search.concurrency();
        if found != self.concurrency {
            self.concurrency = found;
            self.narrow();
        }
    }

    /// What stands beside the queue takes its slots from it, but never the last.
    fn narrow(&mut self) {
        self.queue.set_concurrency(self.concurrency.saturating_sub(self.beside).max(1));
    }

    /// Notes who has room and who is refused, tells `heard` of each, and the search how many are
    /// with the backend; returns whom to wake.
    fn pass(&mut self, now: Time, mut heard: impl FnMut(Id, Result<(), Nanos>)) -> Vec<Waker> {
        self.queue.handle_timeout(now);
        let mut woken = Vec::new();
        loop {
            let (id, how) = match self.queue.poll_dispatch(now) {
                Some(id) => (id, Ok(())),
                None => match self.queue.poll_refused() {
                    Some(refused) => (refused.id, Err(refused.retry_after)),
                    None => break,
                },
            };
            heard(id, how);
            if let Some(fate) = self.waiting.get_mut(&id)
                && let Fate::Waits(Some(waker)) = std::mem::replace(fate, Fate::Ended(how))
            {
                woken.push(waker);
            }
        }
        if let Some(search) = &mut self.search {
            search.handle_running(self.queue.in_flight(), now);
        }
        woken
    }
}

/// Lets pass who can, and wakes them when others can get at the queue again.
fn pass(mut state: MutexGuard<'_, State>, now: Time) {
    let woken = state.pass(now, |_, _| ());
    drop(state);
    woken.into_iter().for_each(Waker::wake);
}
