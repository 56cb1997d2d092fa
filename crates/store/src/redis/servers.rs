//! The servers of one lane: sends questions of any kind to the right servers, and returns their
//! answers.
//!
//! All keys of one server go to it in one call, and several servers are asked in parallel. In a
//! cluster each key has a call of its own, because keys may lie in different slots; all calls to a
//! node are sent together. If a node redirects a call to another node, the call follows. If a
//! server does not know a script, the script is sent along with the question.

use super::link::ServerLink;
use super::route::KeyRoute;
use super::script::{self, MissedAnswer, ScriptQuestion, ServerRefusal, TimedAnswer};
use super::store::{RedisStore, StoreQuestion};
use evenkeel_runtime::clock::Clock;
use futures_util::future::join_all;
use redis::{Pipeline, Value};
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// The most attempts for a question that is redirected between nodes.
const HOPS_MAX: usize = 3;
/// The number of names to try for one that falls to a given server. In a cluster of a hundred nodes
/// each node has one among them.
const PROOFS_MAX: u32 = 1_000;

/// The servers of one lane.
pub struct LaneServers {
    /// The state that all lanes share.
    pub store: Arc<RedisStore>,
    route: KeyRoute,
    /// The servers for counters of one second, if they are separate.
    per_second: Option<KeyRoute>,
}

/// The questions of a request that go to one server, by their places in the request.
pub struct ServerGroup {
    link: Option<Rc<ServerLink>>,
    /// The places of the questions in the request.
    pub places: Vec<usize>,
}

/// Answers, each with the place of its question in the request.
pub type Answers<A> = Vec<(usize, TimedAnswer<A>)>;

/// Calls to one server, each with the places of its questions in the request.
struct ServerCalls {
    link: Rc<ServerLink>,
    calls: Vec<Vec<usize>>,
    /// Whether the calls are repeated. Then the scripts are sent along.
    repeated: bool,
    /// Whether the calls need `ASKING` first, because the slot is being moved to the server.
    asking: bool,
}

impl LaneServers {
    /// Makes links to the configured servers, without connections.
    pub fn new(store: &Arc<RedisStore>) -> Rc<LaneServers> {
        let route = KeyRoute::new(&store.settings.place);
        let per_second = store.settings.per_second.as_ref().map(KeyRoute::new);
        Rc::new(LaneServers { store: Arc::clone(store), route, per_second })
    }

    /// The routes to the servers: the main one, and that for counters of one second.
    pub fn routes(&self) -> impl Iterator<Item = &KeyRoute> {
        std::iter::once(&self.route).chain(&self.per_second)
    }

    /// The links to all known servers.
    pub fn links(&self) -> impl Iterator<Item = Rc<ServerLink>> {
        self.routes().flat_map(KeyRoute::links)
    }

    /// A command that shows whether the server of `link` can write. It has an unused key that falls
    /// to this server. Setting the key only if it exists (`XX`) leaves no trace, and a server that
    /// cannot write answers with an error. For a node with unknown slots the key may belong to
    /// another node, and then the answer proves nothing.
    pub fn proof(&self, link: &Rc<ServerLink>) -> Pipeline {
        let name = |n: u32| format!("{}proof:{n}", self.store.settings.prefix);
        let is_its = |name: &String| {
            let mut links = self.routes().filter_map(|route| route.link(name));
            links.any(|to| Rc::ptr_eq(&to, link))
        };
        let key = (0..PROOFS_MAX).map(name).find(is_its).unwrap_or_else(|| name(0));
        let mut proof = Pipeline::new();
        proof.cmd("SET").arg(key).arg(1).arg("XX");
        proof
    }

    /// Checks that a server with a good connection still answers and can work. Otherwise the
    /// connection is no longer good afterwards.
    pub async fn check(&self, link: &Rc<ServerLink>) {
        let deadline = Clock::deadline(self.store.settings.connect);
        // Without an answer, `ask` has marked the connection itself.
        let Ok(answers) = link.ask(self.proof(link), deadline, |_| {}).await else { return };
        if let Some(why) = script::unable_to_write(&answers) {
            link.give_up(&why);
        }
    }

    fn route_of(&self, ask: &impl ScriptQuestion) -> &KeyRoute {
        self.per_second.as_ref().filter(|_| ask.per_second()).unwrap_or(&self.route)
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
            let its = link.as_ref().map(Rc::as_ptr);
            match groups.iter_mut().find(|group| group.link.as_ref().map(Rc::as_ptr) == its) {
                Some(group) => group.places.push(place),
                None => groups.push(ServerGroup { link, places: vec![place] }),
            }
        }
        groups
    }

    /// Whether the questions of one request are decided by several calls, each by itself.
    pub fn is_split(&self, groups: &[ServerGroup]) -> bool {
        groups.len() > 1 || self.route.is_cluster()
    }

    /// Asks all groups in parallel, and waits for answers until `deadline`. Later answers are used
    /// when they arrive.
    pub async fn ask_all<Q: StoreQuestion>(
        &self,
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

    async fn ask_group<Q: StoreQuestion>(
        &self,
        asks: &Rc<[Q]>,
        group: &ServerGroup,
        how: Q::How,
        deadline: Instant,
    ) -> Answers<Q::Answer> {
        let mut answers = Answers::new();
        let Some(link) = group.link.clone() else {
            extend(&mut answers, &group.places, &MissedAnswer::Away);
            return answers;
        };
        let first = &asks[group.places[0]];
        let calls = match first.alone() || self.route_of(first).is_cluster() {
            true => group.places.iter().map(|place| vec![*place]).collect(),
            false => vec![group.places.clone()],
        };
        let mut next = Some(ServerCalls { link, calls, repeated: false, asking: false });
        for _ in 0..HOPS_MAX {
            let Some(calls) = next else { return answers };
            next = self.ask_link(asks, calls, how, deadline, &mut answers).await;
        }
        let left = next.into_iter().flat_map(|next| next.calls);
        let around = MissedAnswer::Refused("sent around".to_owned());
        left.for_each(|call| extend(&mut answers, &call, &around));
        answers
    }

    /// Sends calls to one server. Adds the answers to `answers`, and returns the calls to repeat.
    async fn ask_link<Q: StoreQuestion>(
        &self,
        asks: &Rc<[Q]>,
        ServerCalls { link, calls, repeated, asking }: ServerCalls,
        how: Q::How,
        deadline: Instant,
        answers: &mut Answers<Q::Answer>,
    ) -> Option<ServerCalls> {
        let mut pipeline = Pipeline::with_capacity(2 * calls.len());
        if repeated {
            script::load(&mut pipeline);
        }
        let before = pipeline.len() + usize::from(asking);
        for call in &calls {
            if asking {
                pipeline.cmd("ASKING");
            }
            Q::call(&mut pipeline, asks, call, how);
        }
        let each = 1 + usize::from(asking);
        let own = move |values: Vec<Value>| values.into_iter().skip(before).step_by(each);
        let calls = Rc::new(calls);
        let (store, were, of) = (Arc::clone(&self.store), Rc::clone(asks), Rc::clone(&calls));
        let late = move |values| {
            for (call, value) in of.iter().zip(own(values)) {
                store.take_late(call.iter().map(|place| were[*place].clone()).collect(), &value);
            }
        };
        match link.ask(pipeline, deadline, late).await {
            Ok(values) => self.sort(asks, &link, calls.iter().zip(own(values)), answers),
            Err(missed) => {
                calls.iter().for_each(|call| extend(answers, call, &missed));
                None
            }
        }
    }

    /// Adds the answers of a server to `answers`. Returns the calls to repeat.
    fn sort<'c, Q: StoreQuestion>(
        &self,
        asks: &[Q],
        link: &Rc<ServerLink>,
        answered: impl Iterator<Item = (&'c Vec<usize>, Value)>,
        answers: &mut Answers<Q::Answer>,
    ) -> Option<ServerCalls> {
        let mut again: Option<ServerCalls> = None;
        for (call, value) in answered {
            let refusal = match Q::read(&value, call.len()) {
                Ok((now, all)) => {
                    let all = all.into_iter().map(|answer| Ok((answer, now)));
                    answers.extend(call.iter().copied().zip(all));
                    continue;
                }
                Err(refusal) => refusal,
            };
            let asking = matches!(refusal, ServerRefusal::Asking(_));
            let next = self.next(&asks[call[0]], link, &refusal);
            match (&mut again, next) {
                (None, Some(link)) => {
                    let calls = vec![call.clone()];
                    again = Some(ServerCalls { link, calls, repeated: true, asking });
                }
                (Some(to), Some(next)) if Rc::ptr_eq(&to.link, &next) => {
                    // A node that already has the slot accepts `ASKING` too.
                    to.asking |= asking;
                    to.calls.push(call.clone());
                }
                _ => extend(answers, call, &refusal.into()),
            }
        }
        again
    }

    /// The server to ask after the one of `link` has refused; `None` if there is none.
    fn next(
        &self,
        ask: &impl ScriptQuestion,
        link: &Rc<ServerLink>,
        refusal: &ServerRefusal,
    ) -> Option<Rc<ServerLink>> {
        let moved = &self.store.counts.moved;
        match refusal {
            ServerRefusal::NoScript => Some(Rc::clone(link)),
            ServerRefusal::Moved(to) => {
                moved.increment(1);
                self.route_of(ask).moved(ask.name(), to)
            }
            ServerRefusal::Asking(to) => {
                moved.increment(1);
                self.route_of(ask).node(to)
            }
            ServerRefusal::Unable(why) => {
                link.give_up(why);
                None
            }
            ServerRefusal::Wrong(_) => None,
        }
    }
}

/// Adds a missing answer for each of these places.
fn extend<A>(answers: &mut Answers<A>, places: &[usize], missed: &MissedAnswer) {
    answers.extend(places.iter().map(|place| (*place, Err(missed.clone()))));
}
