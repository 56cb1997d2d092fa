//! Merges the counters of requests that arrive at the same moment into one call.
//!
//! The cost of a call, here and on the server, hardly depends on its number of counters. So a
//! request waits one turn of the runtime for other requests of the same thread, and all are sent
//! together. Requests with counters that depend on each other, or on several servers, are sent
//! separately.

use crate::redis::script::{CounterAsk, MissedAnswer};
use crate::redis::servers::{Answers, LaneServers};
use evenkeel_runtime::clock::Clock;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// The most counters of a merged call. A request that exceeds it starts another call. Less: the
/// server spends more on calls, 6 % with ten counters for each request and at most 128 in a call.
/// More: other clients of the server wait for longer, by 2 µs for each counter.
const COUNTERS_MAX: usize = 512;

/// The most requests of a merged call. Less: more calls. More: the server waits while this thread
/// answers, and this thread while the server counts (with 400, a tenth fewer requests a second).
const REQUESTS_MAX: usize = 128;

/// Answers for counters: the hits before and after.
pub type CounterAnswers = Answers<(u32, u32)>;

/// Merges the calls of one thread.
#[derive(Default)]
pub struct CallMerger {
    /// The call that was begun last. It is empty when it has been sent.
    open: RefCell<Rc<RefCell<MergedCall>>>,
}

/// A call that further requests may join.
#[derive(Default)]
struct MergedCall {
    asks: Vec<CounterAsk>,
    /// The requests in the call: the places of their counters, and where to send their answers.
    askers: Vec<(Vec<usize>, oneshot::Sender<CounterAnswers>)>,
}

impl CallMerger {
    /// Asks for the counters at `places`, together with other requests of this moment.
    pub async fn ask(
        &self,
        servers: &Rc<LaneServers>,
        asks: &[CounterAsk],
        places: &[usize],
    ) -> CounterAnswers {
        let (told, answers) = oneshot::channel();
        {
            let call = self.joinable(servers, places.len());
            let mut call = call.borrow_mut();
            call.asks.extend(places.iter().map(|place| asks[*place].clone()));
            call.askers.push((places.to_vec(), told));
        }
        let away = |place: &usize| (*place, Err(MissedAnswer::Away));
        answers.await.unwrap_or_else(|_| places.iter().map(away).collect())
    }

    /// The open call, if it has room for a request with `count` counters; else a new one, which is
    /// sent soon.
    fn joinable(&self, servers: &Rc<LaneServers>, count: usize) -> Rc<RefCell<MergedCall>> {
        let mut open = self.open.borrow_mut();
        let (counters, requests) = (open.borrow().asks.len(), open.borrow().askers.len());
        if counters == 0 || counters + count > COUNTERS_MAX || requests >= REQUESTS_MAX {
            *open = Rc::default();
            tokio::task::spawn_local(send(Rc::clone(servers), Rc::clone(&open)));
        }
        Rc::clone(&open)
    }
}

/// Sends a call after the other ready tasks of the thread have had their turn to join it.
async fn send(servers: Rc<LaneServers>, call: Rc<RefCell<MergedCall>>) {
    tokio::task::yield_now().await;
    let MergedCall { asks, askers } = call.take();
    let asks: Rc<[CounterAsk]> = asks.into();
    let groups = servers.groups(&asks, 0..asks.len());
    let deadline = Clock::deadline(servers.store.settings.deadline);
    let mut answers = servers.ask_all(&asks, &groups, false, deadline).await;
    answers.sort_unstable_by_key(|(place, _)| *place);
    let mut answers = answers.into_iter().peekable();
    let mut first = 0;
    for (places, told) in askers {
        let mut own = Answers::with_capacity(places.len());
        while let Some((at, answer)) = answers.next_if(|(at, _)| *at < first + places.len()) {
            own.push((places[at - first], answer));
        }
        first += places.len();
        // The receiver is gone if the request was cancelled in the meantime.
        let _ = told.send(own);
    }
}
