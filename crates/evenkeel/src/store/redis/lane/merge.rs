//! Counters of requests that come at the same moment, as one call.
//!
//! What a call costs, here and at the server, hardly depends on how many counters it has; so
//! whoever asks waits for the others of this thread that are about to, one turn of the runtime, and
//! all go together. Requests whose counters depend on each other, and those of several servers, go
//! by themselves.

use super::Lane;
use super::asking::{Answers, Question};
use crate::clock::Clock;
use crate::store::redis::link::Missed;
use crate::store::redis::script::Ask;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Counters of one call; who brings more begins another.
const MERGED_MAX: usize = 128;

/// What is answered for each counter.
pub type Told = <Ask as Question>::Answer;

/// A call that others may join.
#[derive(Default)]
pub struct Call {
    asks: Vec<Ask>,
    /// Who asked, and for how many counters each.
    askers: Vec<(usize, oneshot::Sender<Answers<Told>>)>,
}

impl Lane {
    /// Asks for those at `places`, along with whoever asks now.
    pub async fn ask_along(self: &Rc<Lane>, asks: &[Ask], places: &[usize]) -> Answers<Told> {
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
            Err(_) => places.iter().map(|place| (*place, Err(Missed::Away))).collect(),
        }
    }

    /// A call with room for so many, which goes out soon.
    fn joinable(self: &Rc<Lane>, count: usize) -> Rc<RefCell<Call>> {
        let open = self.open.borrow().clone();
        let open = open.filter(|call| call.borrow().asks.len() + count <= MERGED_MAX);
        open.unwrap_or_else(|| {
            let call = Rc::new(RefCell::new(Call::default()));
            self.open.replace(Some(Rc::clone(&call)));
            tokio::task::spawn_local(Rc::clone(self).send(Rc::clone(&call)));
            call
        })
    }

    /// Sends a call once all that were about to join it have.
    async fn send(self: Rc<Lane>, call: Rc<RefCell<Call>>) {
        tokio::task::yield_now().await;
        let _ = self.open.borrow_mut().take_if(|open| Rc::ptr_eq(open, &call));
        let Call { asks, askers } = call.take();
        let asks: Rc<[Ask]> = asks.into();
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
            // Who has gone away meanwhile needs none.
            let _ = told.send(own);
        }
    }
}
