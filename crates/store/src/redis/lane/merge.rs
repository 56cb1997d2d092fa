//! Merges the counters of requests that arrive at the same moment into one call.
//!
//! The cost of a call, here and on the server, hardly depends on its number of counters. So a
//! request waits one turn of the runtime for other requests of the same thread, and all are sent
//! together. Requests with counters that depend on each other, or on several servers, are sent
//! separately.

use super::StoreLane;
use super::asking::{Answers, ScriptQuestion};
use crate::redis::link::MissedAnswer;
use crate::redis::script::CounterAsk;
use evenkeel_runtime::clock::Clock;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// The most counters of a merged call. A request that exceeds it starts another call.
const MERGED_MAX: usize = 128;

/// The answer for one counter: the hits before and after.
pub type CounterAnswer = <CounterAsk as ScriptQuestion>::Answer;

/// A call that further requests may join.
#[derive(Default)]
pub struct MergedCall {
    asks: Vec<CounterAsk>,
    /// The requests in the call: their numbers of counters, and where to send their answers.
    askers: Vec<(usize, oneshot::Sender<Answers<CounterAnswer>>)>,
}

impl StoreLane {
    /// Asks for the counters at `places`, together with other requests of this moment.
    pub async fn ask_along(
        self: &Rc<StoreLane>,
        asks: &[CounterAsk],
        places: &[usize],
    ) -> Answers<CounterAnswer> {
        let (told, answers) = oneshot::channel();
        let call = self.joinable(places.len());
        {
            let mut call = call.borrow_mut();
            call.asks.extend(places.iter().map(|place| asks[*place].clone()));
            call.askers.push((places.len(), told));
        }
        match answers.await {
            Ok(answers) => {
                let own = answers.into_iter();
                own.filter_map(|(at, answer)| Some((*places.get(at)?, answer))).collect()
            }
            Err(_) => places.iter().map(|place| (*place, Err(MissedAnswer::Away))).collect(),
        }
    }

    /// The open call, if it has room for `count` more counters; else a new one, which is sent soon.
    fn joinable(self: &Rc<StoreLane>, count: usize) -> Rc<RefCell<MergedCall>> {
        let open = self.open.borrow().clone();
        let open = open.filter(|call| call.borrow().asks.len() + count <= MERGED_MAX);
        open.unwrap_or_else(|| {
            let call = Rc::new(RefCell::new(MergedCall::default()));
            self.open.replace(Some(Rc::clone(&call)));
            tokio::task::spawn_local(Rc::clone(self).send(Rc::clone(&call)));
            call
        })
    }

    /// Sends a call after the other ready tasks of the thread have had their turn to join it.
    async fn send(self: Rc<StoreLane>, call: Rc<RefCell<MergedCall>>) {
        tokio::task::yield_now().await;
        let _ = self.open.borrow_mut().take_if(|open| Rc::ptr_eq(open, &call));
        let MergedCall { asks, askers } = call.take();
        let asks: Rc<[CounterAsk]> = asks.into();
        let groups = self.groups(&asks, 0..asks.len());
        let deadline = Clock::deadline(self.store.settings.deadline);
        let mut answers = self.ask_all(&asks, &groups, false, deadline).await;
        answers.sort_unstable_by_key(|(place, _)| *place);
        let mut answers = answers.into_iter().peekable();
        let mut first = 0;
        for (count, told) in askers {
            let mut own = Answers::with_capacity(count);
            while let Some((place, answer)) = answers.next_if(|(place, _)| *place < first + count) {
                own.push((place - first, answer));
            }
            first += count;
            // The receiver is gone if the request was cancelled in the meantime.
            let _ = told.send(own);
        }
    }
}
