//! What one thread asks of the store: all counters of a request at once.
//!
//! How questions travel: `asking`; what goes together: `merge`; buckets, which other doors ask for:
//! `accounts`. Whatever is not answered is counted here and noted, to be told later. What was sent
//! and not answered in time may have been counted: it is not told again, so an outage costs at most
//! the hits that were with the server when it began.

pub mod accounts;
pub mod asking;
mod merge;
pub mod together;

use super::Store;
use super::link::{Link, Missed, calls};
use super::owed::Owed;
use super::route::Route;
use super::script::{self, Ask, Refusal};
use super::tend::{explore, settle};
use crate::clock::Clock;
use crate::config::settings::store::StoreFail;
use crate::watch::counts::store::StoreCounts;
use accounts::Outbox;
use asking::{Answers, Group, Question};
use merge::Call;
use redis::Value;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::units::Time;
use tollgate_core::windows::{Hit, Policy};

/// Counters in one call when the store is told what it is owed.
const TOLD_AT_ONCE: usize = 256;
/// Names that are tried for one that a server has. Of a hundred nodes each has one among them.
const PROOFS_MAX: u32 = 1_000;

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
    /// What it is owed of buckets.
    outbox: Outbox,
    /// The call that goes out next.
    open: RefCell<Option<Rc<RefCell<Call>>>>,
}

impl Lane {
    /// Begins to connect. Nobody waits for it.
    pub fn open(store: Arc<Store>) -> Rc<Lane> {
        let route = Route::new(&store.settings.place);
        let per_second = store.settings.per_second.as_ref().map(Route::new);
        let outbox = store.outbox.clone();
        let (owed, open) = (RefCell::default(), RefCell::default());
        let lane = Rc::new(Lane { store, route, per_second, owed, outbox, open });
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
        let places = (0..asks.len()).filter(|place| !asks[*place].hit.spared);
        let groups = self.groups(asks, places);
        let deadline = Clock::deadline(self.store.settings.deadline);
        let began = self.now();
        let several = groups.len() > 1 || self.route.is_cluster();
        let mut answers = if policy.stop_when_over && (several || spared) {
            self.ask_twice(asks, &groups, spared, deadline).await
        } else {
            match groups.as_slice() {
                [group] if !(policy.stop_when_over || self.route.is_cluster()) => {
                    self.ask_along(asks, group.places()).await
                }
                _ => self.ask_all(asks, &groups, policy.stop_when_over, deadline).await,
            }
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

    /// Where what one server answers decides what another one is asked: first all are looked at.
    async fn ask_twice(
        self: &Rc<Lane>,
        asks: &[Ask],
        groups: &[Group],
        spared: bool,
        deadline: Instant,
    ) -> Answers<(u32, u32)> {
        let look = |ask: &Ask| Ask { hit: Hit { hits: 0, ..ask.hit }, ..ask.clone() };
        let looks: Vec<Ask> = asks.iter().map(look).collect();
        let seen = self.ask_all(&looks, groups, false, deadline).await;
        let over = |place: usize, used: u32| {
            let Hit { hits, limit, give_back, .. } = asks[place].hit;
            !give_back && used.saturating_add(hits) > limit
        };
        let would = seen
            .iter()
            .any(|(place, answer)| matches!(answer, Ok(((_, used), _)) if over(*place, *used)));
        if !(spared || would) {
            return self.ask_all(asks, groups, false, deadline).await;
        }
        let mut stopped = looks;
        for (place, answer) in &seen {
            let counts = matches!(answer, Ok(((_, used), _)) if over(*place, *used)) && !spared;
            if counts || asks[*place].hit.give_back {
                stopped[*place].hit.hits = asks[*place].hit.hits;
            }
        }
        self.ask_all(&stopped, groups, false, deadline).await
    }

    /// An answer that came too late: what it says is known at least.
    pub fn heard(&self, mut asks: Vec<Ask>, value: &Value) {
        if let Ok((now, pairs)) = Ask::read(value, asks.len()) {
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
        answers: Answers<(u32, u32)>,
        policy: Policy,
        now: Time,
    ) -> Result<Time, Unanswered> {
        let counts = self.counts();
        let mut time = now;
        let (mut missed, mut owed) = (Vec::new(), Vec::new());
        counts.spared.increment(asks.iter().filter(|ask| ask.hit.spared).count() as u64);
        for (place, answer) in answers {
            match answer {
                Ok(((before, after), now)) => {
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

    /// Takes over what was reported and no lane has counted.
    pub fn take_reported(&self) {
        let reported = std::mem::take(&mut *self.store.reported.lock());
        let mut owed = self.owed.borrow_mut();
        for ask in reported {
            if !owed.add(&ask, ask.hit.hits.into(), self.store.settings.owed_max) {
                self.counts().lost.increment(1);
            }
        }
    }

    /// A key of the server of `link` that nobody has: to set it if it is there leaves nothing
    /// behind, and who cannot write says so. Of a node whose slots are not known it may be
    /// another's key, and proves nothing.
    pub fn proof(&self, link: &Rc<Link>) -> String {
        let name = |n: u32| format!("{}proof:{n}", self.store.settings.prefix);
        let is_its = |name: &String| {
            let mut links = self.routes().filter_map(|route| route.link(name));
            links.any(|to| Rc::ptr_eq(&to, link))
        };
        (0..PROOFS_MAX).map(name).find(is_its).unwrap_or_else(|| name(0))
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
            self.link_of(ask).is_some_and(|to| Rc::ptr_eq(&to, link))
        });
        self.counts().lost.increment(lost);
        asks
    }

    /// The server has answered for what it was owed.
    pub fn told(&self, asks: Vec<Ask>, answers: &[Value]) {
        for (ask, answer) in asks.into_iter().zip(answers) {
            match Ask::read(answer, 1) {
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
