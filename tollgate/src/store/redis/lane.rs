//! What one thread asks of the store: all counters of a request at once.
//!
//! Counters of one server go in one call, those of several servers in parallel. Nodes of a cluster
//! take a call for each counter, for they may lie in different slots; all calls to a node go out
//! together. Whatever is not answered is counted here and noted, to be told later. What was sent
//! and not answered in time may have been counted: it is not told again, so an outage costs at most
//! the hits that were with the server when it began.

use super::Store;
use super::link::{Link, Missed, calls};
use super::owed::Owed;
use super::route::Route;
use super::script::{self, Ask, Refusal};
use super::tend::{explore, settle};
use super::together::together;
use crate::clock::Clock;
use crate::config::settings::store::StoreFail;
use crate::watch::counts::store::StoreCounts;
use redis::{Pipeline, Value};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::units::Time;
use tollgate_core::windows::{Hit, Policy};

/// Counters in one call when the store is told what it is owed.
const TOLD_AT_ONCE: usize = 256;
/// How often a question follows a counter to another node.
const HOPS_MAX: usize = 3;

/// The store gives no answer, and what is known here is not to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store gives no answer")]
pub struct Unanswered;

/// What one thread asks with.
pub struct Lane {
    store: Arc<Store>,
    route: Route,
    /// Where counters of one second are, if they are elsewhere.
    per_second: Option<Route>,
    owed: RefCell<Owed>,
}

/// Counters of a request that one link has: their places in the request.
struct Group {
    link: Option<Rc<Link>>,
    places: Vec<usize>,
}

/// What was answered for the counters of a group.
type Answers = Vec<(usize, Result<(u32, u32, Time), Missed>)>;

/// Calls that are to be made again: whom, which, and whether that is the one exception.
type Again = Option<(Rc<Link>, Vec<Vec<usize>>, bool)>;

impl Lane {
    /// Begins to connect. Nobody waits for it.
    pub fn open(store: Arc<Store>) -> Rc<Lane> {
        let route = Route::new(&store.settings.place);
        let per_second = store.settings.per_second.as_ref().map(Route::new);
        let lane = Rc::new(Lane { store, route, per_second, owed: RefCell::default() });
        lane.keep();
        for second in [false, true] {
            if lane.routes().nth(usize::from(second)).is_some_and(Route::is_cluster) {
                tokio::task::spawn_local(explore(Rc::downgrade(&lane), second));
            }
        }
        tokio::task::spawn_local(settle(Rc::downgrade(&lane), lane.store.settings.period));
        lane
    }

    /// The places that counters may be in.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        std::iter::once(&self.route).chain(&self.per_second)
    }

    /// Has all servers kept that are known.
    pub fn keep(self: &Rc<Lane>) {
        for route in self.routes() {
            route.keep(|link| {
                let within = self.store.settings.connect;
                tokio::task::spawn_local(link.keep(Rc::downgrade(self), within)).abort_handle()
            });
        }
    }

    /// What is counted about the store.
    pub fn counts(&self) -> &Arc<StoreCounts> {
        &self.store.counts
    }

    /// How counters are called and kept.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Our clock.
    pub fn clock(&self) -> Clock {
        self.store.clock
    }

    /// The present by our clock.
    pub fn now(&self) -> Time {
        self.store.clock.now()
    }

    /// How many counters the store has to be told of.
    pub fn owes(&self) -> usize {
        self.owed.borrow().len()
    }

    /// How long a server may take that no request waits for.
    pub fn patience(&self) -> Duration {
        self.store.settings.connect
    }

    fn route_of(&self, ask: &Ask) -> &Route {
        match &self.per_second {
            Some(route) if ask.per_second => route,
            _ => &self.route,
        }
    }

    /// Counts all, and says what became of each and when that was. What the store does not answer
    /// for is counted here. `now` is the time by our clock.
    ///
    /// # Errors
    /// [`Unanswered`], where that is wanted; what the store has counted by then is counted.
    pub async fn count(
        self: &Rc<Lane>,
        asks: &mut [Ask],
        policy: Policy,
        now: Time,
    ) -> Result<Time, Unanswered> {
        if self.store.is_batched() {
            let all: Vec<usize> = (0..asks.len()).collect();
            self.count_here(asks, &all, policy, now);
            self.owe(asks, &all);
            return Ok(now);
        }
        let spared = self.look_here(asks, policy, now);
        let groups = self.groups(asks);
        let deadline = Clock::deadline(self.store.settings.deadline);
        let began = self.now();
        let several = groups.len() > 1 || self.route.is_cluster();
        let mut answers = if policy.stop_when_over && (several || spared) {
            self.ask_twice(asks, &groups, spared, deadline).await
        } else {
            self.ask_all(asks, &groups, policy.stop_when_over, deadline).await
        };
        if !groups.is_empty() {
            self.counts().took.record(self.now().since(began).0);
        }
        answers.sort_unstable_by_key(|(place, _)| *place);
        self.take_answers(asks, answers, policy, now)
    }

    /// Notes what is known of each counter, and lets those be that are known to be over. Whether
    /// there are such.
    fn look_here(&self, asks: &mut [Ask], policy: Policy, now: Time) -> bool {
        let mut spared = false;
        let owed = self.owed.borrow();
        for ask in asks {
            self.store.counters.look_at(std::slice::from_mut(&mut ask.hit), now);
            let used = i64::from(ask.hit.before);
            ask.known = u32::try_from(used - owed.of(&ask.name)).unwrap_or(0);
            let over = ask.hit.before > ask.hit.limit && !ask.hit.give_back;
            ask.hit.spared = policy.spare_over && over;
            spared |= ask.hit.spared;
        }
        spared
    }

    fn groups(&self, asks: &[Ask]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (place, ask) in asks.iter().enumerate().filter(|(_, ask)| !ask.hit.spared) {
            let link = self.route_of(ask).link(&ask.name);
            let same = |group: &&mut Group| match (&group.link, &link) {
                (Some(one), Some(other)) => Rc::ptr_eq(one, other),
                (None, None) => true,
                _ => false,
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.places.push(place),
                None => groups.push(Group { link, places: vec![place] }),
            }
        }
        groups
    }

    /// All groups at once.
    async fn ask_all(
        self: &Rc<Lane>,
        asks: &[Ask],
        groups: &[Group],
        stop: bool,
        deadline: Instant,
    ) -> Answers {
        match groups {
            [] => Vec::new(),
            [group] => self.ask_group(asks, group, stop, deadline).await,
            many => {
                let asked = many.iter().map(|group| self.ask_group(asks, group, stop, deadline));
                together(asked).await.into_iter().flatten().collect()
            }
        }
    }

    /// Where what one server answers decides what another one is asked: first all are looked at.
    async fn ask_twice(
        self: &Rc<Lane>,
        asks: &[Ask],
        groups: &[Group],
        spared: bool,
        deadline: Instant,
    ) -> Answers {
        let look = |ask: &Ask| Ask { hit: Hit { hits: 0, ..ask.hit }, ..ask.clone() };
        let looks: Vec<Ask> = asks.iter().map(look).collect();
        let seen = self.ask_all(&looks, groups, false, deadline).await;
        let over = |place: usize, used: u32| {
            let Hit { hits, limit, give_back, .. } = asks[place].hit;
            !give_back && used.saturating_add(hits) > limit
        };
        let would = seen
            .iter()
            .any(|(place, answer)| matches!(answer, Ok((_, used, _)) if over(*place, *used)));
        if !(spared || would) {
            return self.ask_all(asks, groups, false, deadline).await;
        }
        let mut stopped = looks;
        for (place, answer) in &seen {
            let counts = matches!(answer, Ok((_, used, _)) if over(*place, *used)) && !spared;
            if counts || asks[*place].hit.give_back {
                stopped[*place].hit.hits = asks[*place].hit.hits;
            }
        }
        self.ask_all(&stopped, groups, false, deadline).await
    }

    async fn ask_group(
        self: &Rc<Lane>,
        asks: &[Ask],
        group: &Group,
        stop: bool,
        deadline: Instant,
    ) -> Answers {
        let Some(link) = &group.link else {
            return group.places.iter().map(|place| (*place, Err(Missed::Away))).collect();
        };
        let cluster = self.route_of(&asks[group.places[0]]).is_cluster();
        let calls: Vec<Vec<usize>> = match cluster {
            true => group.places.iter().map(|place| vec![*place]).collect(),
            false => vec![group.places.clone()],
        };
        let mut answers = Answers::new();
        let (mut link, mut calls, mut asking) = (Rc::clone(link), calls, false);
        for hop in 0..HOPS_MAX {
            let wanted: Vec<Vec<Ask>> = calls
                .iter()
                .map(|call| call.iter().map(|place| asks[*place].clone()).collect())
                .collect();
            let (known, elsewhere) =
                self.ask_link(&link, &calls, wanted, (stop, hop, asking), deadline).await;
            answers.extend(known);
            let Some((next, moved, ask)) = elsewhere else { return answers };
            (link, calls, asking) = (next, moved, ask);
        }
        let left = calls.into_iter().flatten();
        answers.extend(left.map(|place| (place, Err(Missed::Refused("sent around".into())))));
        answers
    }

    /// Asks one link. Returns what it answered, and what is to be asked again and of whom.
    async fn ask_link(
        self: &Rc<Lane>,
        link: &Rc<Link>,
        calls: &[Vec<usize>],
        asks: Vec<Vec<Ask>>,
        (stop, hop, asking): (bool, usize, bool),
        deadline: Instant,
    ) -> (Answers, Again) {
        let mut pipeline = Pipeline::with_capacity(2 * asks.len());
        let mut before = 0;
        if hop > 0 && !asking {
            script::load(&mut pipeline);
            before = 1;
        }
        for asks in &asks {
            if asking {
                pipeline.cmd("ASKING");
            }
            script::call(&mut pipeline, asks.iter(), stop);
        }
        let each = if asking { 2 } else { 1 };
        let weak = Rc::downgrade(self);
        let late = asks.clone();
        let late = move |values: Vec<Value>| {
            let Some(lane) = weak.upgrade() else { return };
            for (asks, value) in late.into_iter().zip(values.iter().skip(before)) {
                lane.heard(asks, value);
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
        self.sort(link, calls, &asks, values)
    }

    fn sort<'v>(
        &self,
        link: &Rc<Link>,
        calls: &[Vec<usize>],
        asks: &[Vec<Ask>],
        values: impl Iterator<Item = &'v Value>,
    ) -> (Answers, Again) {
        let mut answers = Answers::new();
        let mut again: Again = None;
        let mut follow = |next: Option<Rc<Link>>,
                          call: &Vec<usize>,
                          asking,
                          answers: &mut Answers| match (&mut again, next) {
            (None, Some(next)) => again = Some((next, vec![call.clone()], asking)),
            (Some((to, calls, _)), Some(next)) if Rc::ptr_eq(to, &next) => {
                calls.push(call.clone());
            }
            _ => answers.extend(call.iter().map(|place| (*place, Err(Missed::Away)))),
        };
        for ((call, asks), value) in calls.iter().zip(asks).zip(values) {
            let route = self.route_of(&asks[0]);
            let missed = match script::read(value, call.len()) {
                Ok((now, pairs)) => {
                    let pairs = call.iter().zip(pairs);
                    answers.extend(pairs.map(|(place, (b, a))| (*place, Ok((b, a, now)))));
                    continue;
                }
                Err(Refusal::NoScript) => {
                    follow(Some(Rc::clone(link)), call, false, &mut answers);
                    continue;
                }
                Err(Refusal::Moved(to)) => {
                    self.counts().moved.increment(1);
                    follow(route.moved(&asks[0].name, &to), call, false, &mut answers);
                    continue;
                }
                Err(Refusal::Asking(to)) => {
                    self.counts().moved.increment(1);
                    follow(route.node(&to), call, true, &mut answers);
                    continue;
                }
                Err(Refusal::Unable(why)) => {
                    link.give_up(&why);
                    Missed::Unable(why)
                }
                Err(Refusal::Wrong(why)) => Missed::Refused(why),
            };
            answers.extend(call.iter().map(|place| (*place, Err(missed.clone()))));
        }
        (answers, again)
    }

    /// An answer that came too late: what it says is known at least.
    fn heard(&self, mut asks: Vec<Ask>, value: &Value) {
        if let Ok((now, pairs)) = script::read(value, asks.len()) {
            for (ask, (before, after)) in asks.iter_mut().zip(pairs) {
                ask.answered(before, after, now);
                self.learn(ask, now);
            }
        }
    }

    /// What the store says of a counter, and what it has yet to be told, is what is known.
    fn learn(&self, ask: &Ask, now: Time) {
        let owed = u32::try_from(self.owed.borrow().of(&ask.name)).unwrap_or(0);
        let after = ask.hit.after.saturating_add(owed);
        self.store.counters.learn(&Hit { after, ..ask.hit }, now);
    }

    fn take_answers(
        &self,
        asks: &mut [Ask],
        answers: Answers,
        policy: Policy,
        now: Time,
    ) -> Result<Time, Unanswered> {
        let counts = self.counts();
        let mut time = now;
        let (mut missed, mut owed) = (Vec::new(), Vec::new());
        counts.spared.increment(asks.iter().filter(|ask| ask.hit.spared).count() as u64);
        for (place, answer) in answers {
            match answer {
                Ok((before, after, now)) => {
                    counts.answered.increment(1);
                    asks[place].answered(before, after, now);
                    self.learn(&asks[place], now);
                    time = now;
                    continue;
                }
                Err(Missed::Late) => counts.late.increment(1),
                Err(Missed::Away) => {
                    counts.away.increment(1);
                    owed.push(place);
                }
                Err(Missed::Unable(_)) => {
                    counts.refused.increment(1);
                    owed.push(place);
                }
                Err(Missed::Refused(why)) => {
                    counts.refused.increment(1);
                    tracing::debug!(target: "tollgate::store", why, "a counter was refused");
                }
            }
            missed.push(place);
        }
        if missed.is_empty() {
            return Ok(time);
        }
        if self.store.settings.fail == StoreFail::Error {
            return Err(Unanswered);
        }
        self.count_here(asks, &missed, policy, now);
        self.owe(asks, &owed);
        Ok(time)
    }

    /// Counts those at these places here alone.
    fn count_here(&self, asks: &mut [Ask], places: &[usize], policy: Policy, now: Time) {
        let mut hits: Vec<Hit> = places.iter().map(|place| asks[*place].hit).collect();
        self.store.counters.count(&mut hits, &mut Vec::new(), policy, now);
        for (place, hit) in places.iter().zip(hits) {
            asks[*place].hit = hit;
        }
    }

    /// Notes what was counted here alone.
    fn owe(&self, asks: &[Ask], places: &[usize]) {
        let mut owed = self.owed.borrow_mut();
        for ask in places.iter().map(|place| &asks[*place]) {
            let hits = match ask.hit.give_back {
                true => i64::from(ask.hit.after) - i64::from(ask.hit.before),
                false => i64::from(ask.hit.charged()),
            };
            if !owed.add(ask, hits, self.store.settings.owed_max) {
                self.counts().lost.increment(1);
            }
        }
    }

    /// Some of what the server of `link` is owed.
    pub fn owed_to(&self, link: &Rc<Link>, max: usize) -> Vec<Ask> {
        let mut lost = 0;
        let now = self.now();
        let mut owed = self.owed.borrow_mut();
        if owed.len() == 0 {
            return Vec::new();
        }
        let asks = owed.take(max, now, &mut lost, |ask| {
            self.route_of(ask).link(&ask.name).is_some_and(|to| Rc::ptr_eq(&to, link))
        });
        self.counts().lost.increment(lost);
        asks
    }

    /// The server has answered for what it was owed.
    pub fn told(&self, asks: Vec<Ask>, answers: &[Value]) {
        for (ask, answer) in asks.into_iter().zip(answers) {
            match script::read(answer, 1) {
                Ok(_) => {
                    self.counts().told.increment(1);
                    self.heard(vec![ask], answer);
                }
                Err(Refusal::Wrong(why)) => {
                    self.counts().lost.increment(1);
                    tracing::debug!(target: "tollgate::store", why, "a counter was refused");
                }
                Err(_) => self.take_back(vec![ask], std::slice::from_ref(answer)),
            }
        }
    }

    /// The server has not taken what it was owed, unless it says so.
    pub fn take_back(&self, asks: Vec<Ask>, answers: &[Value]) {
        for (ask, answer) in asks.into_iter().zip(answers) {
            if script::taken(answer).is_ok() {
                self.counts().told.increment(1);
                continue;
            }
            let hits = i64::from(ask.hit.hits);
            let hits = if ask.hit.give_back { -hits } else { hits };
            let ask = Ask { force: false, ..ask };
            self.owed.borrow_mut().add(&ask, hits, usize::MAX);
        }
    }

    /// Tells the server of `link` all it is owed.
    pub async fn settle_with(self: &Rc<Lane>, link: &Rc<Link>) {
        while link.is_good() {
            let owed = self.owed_to(link, TOLD_AT_ONCE);
            if owed.is_empty() {
                return;
            }
            let deadline = Clock::deadline(self.store.settings.connect);
            match link.ask(calls(&owed), deadline, |_| {}).await {
                Ok(answers) => {
                    let unable = answers.iter().find_map(|answer| match script::taken(answer) {
                        Err(Refusal::Unable(why)) => Some(why),
                        _ => None,
                    });
                    self.told(owed, &answers);
                    unable.iter().for_each(|why| link.give_up(why));
                }
                // They may have been counted.
                Err(_) => self.counts().lost.increment(owed.len() as u64),
            }
        }
    }
}
