//! The transport of questions of any kind to the right servers, and of their answers back.
//!
//! All keys of one server go to it in one call, and several servers are asked in parallel. In a
//! cluster each key has a call of its own, because keys may lie in different slots; all calls to a
//! node are sent together. If a node redirects a call to another node, the call follows. If a
//! server does not know a script, the script is sent along with the question.

use super::StoreLane;
use crate::redis::link::{MissedAnswer, ServerLink};
use crate::redis::route::KeyRoute;
use crate::redis::script::{self, ServerRefusal};
use evenkeel_core::units::Time;
use futures_util::future::join_all;
use redis::{Pipeline, Value};
use std::rc::Rc;
use tokio::time::Instant;

/// The most attempts for a question that is redirected between nodes.
const HOPS_MAX: usize = 3;

/// A question to a script about one key.
pub trait ScriptQuestion: Clone + 'static {
    /// The answer for one key.
    type Answer;
    /// The options that apply to all keys of a call.
    type How: Copy + 'static;

    /// The key in the store.
    fn name(&self) -> &str;

    /// Whether the key is in the store for counters of one second, if that is separate.
    fn per_second(&self) -> bool;

    /// Whether the question has a call of its own, so that its refusal affects no other question.
    fn alone(&self) -> bool {
        false
    }

    /// Adds one call with the questions at these places.
    fn call(pipeline: &mut Pipeline, asks: &[Self], places: &[usize], how: Self::How);

    /// Reads the answer to a call with `count` keys. Returns the server's time and the answers.
    ///
    /// # Errors
    /// [`ServerRefusal`].
    fn read(value: &Value, count: usize) -> Result<(Time, Vec<Self::Answer>), ServerRefusal>;

    /// Uses an answer that came after the deadline.
    fn late(lane: &StoreLane, asks: Vec<Self>, value: &Value);
}

/// The questions of a request that go to one server, by their places in the request.
pub struct ServerGroup {
    link: Option<Rc<ServerLink>>,
    places: Vec<usize>,
}

impl ServerGroup {
    /// The places of the questions in the request.
    pub fn places(&self) -> &[usize] {
        &self.places
    }
}

/// Answers, each with the place of its question in the request and the server's time.
pub type Answers<A> = Vec<(usize, Result<(A, Time), MissedAnswer>)>;

/// Calls to repeat: the server, the calls, and whether they need `ASKING` first, because the slot
/// is being moved to that server.
type RepeatedCalls = Option<(Rc<ServerLink>, Vec<Vec<usize>>, bool)>;

impl StoreLane {
    fn route_of(&self, ask: &impl ScriptQuestion) -> &KeyRoute {
        match &self.per_second {
            Some(route) if ask.per_second() => route,
            _ => &self.route,
        }
    }

    /// The link to the server that has the question's key.
    pub fn link_of(&self, ask: &impl ScriptQuestion) -> Option<Rc<ServerLink>> {
        self.route_of(ask).link(ask.name())
    }

    /// Groups the questions at `places` by the server that has their keys.
    pub fn groups<Q: ScriptQuestion>(
        &self,
        asks: &[Q],
        places: impl Iterator<Item = usize>,
    ) -> Vec<ServerGroup> {
        let mut groups: Vec<ServerGroup> = Vec::new();
        for place in places {
            let link = self.link_of(&asks[place]);
            let same = |group: &&mut ServerGroup| match (&group.link, &link) {
                (Some(one), Some(other)) => Rc::ptr_eq(one, other),
                (None, None) => true,
                _ => false,
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.places.push(place),
                None => groups.push(ServerGroup { link, places: vec![place] }),
            }
        }
        groups
    }

    /// Asks all groups in parallel.
    pub async fn ask_all<Q: ScriptQuestion>(
        self: &Rc<StoreLane>,
        asks: &Rc<[Q]>,
        groups: &[ServerGroup],
        how: Q::How,
        deadline: Instant,
    ) -> Answers<Q::Answer> {
        match groups {
            [] => Vec::new(),
            [group] => self.ask_group(asks, group, how, deadline).await,
            many => {
                let asked = many.iter().map(|group| self.ask_group(asks, group, how, deadline));
                join_all(asked).await.into_iter().flatten().collect()
            }
        }
    }

    async fn ask_group<Q: ScriptQuestion>(
        self: &Rc<StoreLane>,
        asks: &Rc<[Q]>,
        group: &ServerGroup,
        how: Q::How,
        deadline: Instant,
    ) -> Answers<Q::Answer> {
        let Some(link) = &group.link else {
            return group.places.iter().map(|place| (*place, Err(MissedAnswer::Away))).collect();
        };
        let first = &asks[group.places[0]];
        let calls: Vec<Vec<usize>> = match first.alone() || self.route_of(first).is_cluster() {
            true => group.places.iter().map(|place| vec![*place]).collect(),
            false => vec![group.places.clone()],
        };
        let mut answers = Answers::new();
        let (mut link, mut calls, mut asking) = (Rc::clone(link), calls, false);
        for hop in 0..HOPS_MAX {
            let calling = (how, hop > 0, asking);
            let questions = (asks, Rc::from(calls));
            let (known, elsewhere) = self.ask_link(&link, questions, calling, deadline).await;
            answers.extend(known);
            let Some((next, moved, ask)) = elsewhere else { return answers };
            (link, calls, asking) = (next, moved, ask);
        }
        let left = calls.into_iter().flatten();
        answers.extend(left.map(|place| (place, Err(MissedAnswer::Refused("sent around".into())))));
        answers
    }

    /// Sends calls to one server. Returns its answers, and the calls to repeat.
    async fn ask_link<Q: ScriptQuestion>(
        self: &Rc<StoreLane>,
        link: &Rc<ServerLink>,
        (asks, calls): (&Rc<[Q]>, Rc<[Vec<usize>]>),
        (how, again, asking): (Q::How, bool, bool),
        deadline: Instant,
    ) -> (Answers<Q::Answer>, RepeatedCalls) {
        let mut pipeline = Pipeline::with_capacity(2 * calls.len());
        let mut before = 0;
        if again {
            script::load(&mut pipeline);
            before = script::SCRIPTS_COUNT;
        }
        for call in &*calls {
            if asking {
                pipeline.cmd("ASKING");
            }
            Q::call(&mut pipeline, asks, call, how);
        }
        let each = if asking { 2 } else { 1 };
        let weak = Rc::downgrade(self);
        let (were, of) = (Rc::clone(asks), Rc::clone(&calls));
        let late = move |values: Vec<Value>| {
            let Some(lane) = weak.upgrade() else { return };
            let values = values.iter().skip(before).skip(each - 1).step_by(each);
            for (call, value) in of.iter().zip(values) {
                Q::late(&lane, call.iter().map(|place| were[*place].clone()).collect(), value);
            }
        };
        let values = match link.ask(pipeline, deadline, late).await {
            Ok(values) => values,
            Err(missed) => {
                let all = calls.iter().flatten();
                return (all.map(|place| (*place, Err(missed.clone()))).collect(), None);
            }
        };
        let values: Vec<Value> = values.into_iter().skip(before).collect();
        let values = values.iter().skip(each - 1).step_by(each);
        self.sort(link, &calls, asks, values)
    }

    fn sort<'v, Q: ScriptQuestion>(
        &self,
        link: &Rc<ServerLink>,
        calls: &[Vec<usize>],
        asks: &[Q],
        values: impl Iterator<Item = &'v Value>,
    ) -> (Answers<Q::Answer>, RepeatedCalls) {
        let mut answers = Answers::new();
        let mut again: RepeatedCalls = None;
        let mut follow =
            |next: Option<Rc<ServerLink>>,
             call: &Vec<usize>,
             asking,
             answers: &mut Answers<Q::Answer>| match (&mut again, next) {
                (None, Some(next)) => again = Some((next, vec![call.clone()], asking)),
                (Some((to, calls, asked)), Some(next)) if Rc::ptr_eq(to, &next) => {
                    // A node that already has the slot accepts `ASKING` too.
                    *asked |= asking;
                    calls.push(call.clone());
                }
                _ => answers.extend(call.iter().map(|place| (*place, Err(MissedAnswer::Away)))),
            };
        for (call, value) in calls.iter().zip(values) {
            let Some(first) = call.first().map(|place| &asks[*place]) else { continue };
            let route = self.route_of(first);
            let missed = match Q::read(value, call.len()) {
                Ok((now, all)) => {
                    let all = call.iter().zip(all);
                    answers.extend(all.map(|(place, answer)| (*place, Ok((answer, now)))));
                    continue;
                }
                Err(ServerRefusal::NoScript) => {
                    follow(Some(Rc::clone(link)), call, false, &mut answers);
                    continue;
                }
                Err(ServerRefusal::Moved(to)) => {
                    self.counts().moved.increment(1);
                    follow(route.moved(first.name(), &to), call, false, &mut answers);
                    continue;
                }
                Err(ServerRefusal::Asking(to)) => {
                    self.counts().moved.increment(1);
                    follow(route.node(&to), call, true, &mut answers);
                    continue;
                }
                Err(ServerRefusal::Unable(why)) => {
                    link.give_up(&why);
                    MissedAnswer::Unable(why)
                }
                Err(ServerRefusal::Wrong(why)) => MissedAnswer::Refused(why),
            };
            answers.extend(call.iter().map(|place| (*place, Err(missed.clone()))));
        }
        (answers, again)
    }
}
