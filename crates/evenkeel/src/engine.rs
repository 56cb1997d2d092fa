//! The decision engine as all doors share it: limiter, meter and the list of the heaviest clients,
//! with the clock read and the outcome counted.
//!
//! It decides nothing itself (the core does) and speaks no protocol (the doors do). A door asks
//! through its [`Lane`] and gets a [`Charge`]: the open account of one request, which settles
//! itself when it is dropped, however the request ended. Where requests wait for room: `turn`.

mod charge;
mod gate;
mod named;
mod peers;
mod quotas;
mod served;
mod turn;

pub use charge::begun::Begun;
pub use charge::{Charge, Tell};
pub use gate::Crowd;
pub use quotas::Quota;
pub use served::{Note, Told, Wait};
pub use turn::{Entered, Turn, Turned};

pub mod counted;
pub mod domains;
pub mod tags;
pub mod together;
pub mod windows;

use crate::client::hosts::KnownHosts;
use crate::clock::{Clock, Stopped};
use crate::config::settings::{self, CostSource, Proxy};
use crate::watch::Watch;
use crate::watch::counts::tiers::Tier;
use arc_swap::ArcSwap;
use counted::overrides::{Effect, InForce, Overrides};
use counted::views::{Seen, Views};
use domains::gatekeeper::{Gatekeeper, Judged, Passage};
use evenkeel_core::classify::{self, Attributes, Keys};
use evenkeel_core::key::{KeyHash, Seed};
use evenkeel_core::limit::{Action, Limit, Unit, When};
use evenkeel_core::limiter::told::Word;
use evenkeel_core::limiter::{Limiter, Policy, Reason, Verdict};
use evenkeel_core::meter::estimate::{Estimates, Foreseen, RouteHash};
use evenkeel_core::meter::{self, Meter};
use evenkeel_core::queue::concurrency::Concurrency;
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};
use gate::Gate;
use ipnet::IpNet;
use named::{Lookups, Named};
use parking_lot::Mutex;
use served::ruling::Ruling;
use std::path::PathBuf;
use std::sync::Arc;
use together::{Elsewhere, Marks, Spent};

/// A client that was not seen for so long is not there any more, for those who count clients.
const GONE: Nanos = Nanos::from_secs(60);
/// How many routes' costs are learned: 48 bytes each.
const ROUTES: usize = 4_096;

/// What the engine needs of a door's configuration; replaced whole on reload.
struct Rules {
    limiter: Arc<Limiter>,
    cpus: f64,
    cost: CostSource,
    exempt: Vec<IpNet>,
    exempt_when: Vec<When>,
    /// What clients' names mean; `None` if nothing.
    hosts: Option<Arc<KnownHosts>>,
    shadow: bool,
    seed: Seed,
    /// Whether requests wait for room.
    queues: bool,
    /// Whether some limit wants to know what a request will cost before it runs.
    foresees: bool,
    /// How many clients each limit remembers by name, per lane.
    names_max: usize,
    /// The limits as other instances know them.
    marks: Marks,
    /// Whether some limit is in hits, which are charged when a request is let in.
    hits: bool,
}

/// Limiter, meter and top, shared by all threads of a door.
pub struct Engine {
    clock: Clock,
    rules: ArcSwap<Rules>,
    meter: Mutex<Meter>,
    gate: Gate,
    /// What requests have cost, by route.
    estimates: Mutex<Estimates>,
    lanes: Vec<Arc<Mutex<Books>>>,
    watch: Arc<Watch>,
    /// Clients whose names are to be looked up, until somebody does it.
    lookups: Mutex<Option<Lookups>>,
    /// The settings as they were given, and how much more there is to share out for those who
    /// count together.
    given: Mutex<(Proxy, f64)>,
    /// What other instances tell of the heaviest.
    elsewhere: Elsewhere,
    /// Whose orders are kept beside the limits.
    gatekeepers: Vec<Arc<Gatekeeper>>,
    /// What operators have said of single clients.
    overrides: Overrides,
}

/// What each thread has for itself, behind a lock that only `reload` and people looking contend.
struct Books {
    rules: Arc<Rules>,
    /// The heaviest clients of each limit.
    tops: Vec<Top>,
    /// What was charged, where others are to be told.
    spent: Option<Spent>,
    /// The heaviest by what no limit counts by.
    views: Views,
    /// What operators have said of single clients.
    in_force: InForce,
}

/// A request that has been found its place.
struct Entering {
    rules: Arc<Rules>,
    keys: Keys,
    exempt: bool,
    /// What an operator says that it weighs.
    weight: Weight,
    seen: Seen,
}

impl Engine {
    /// An engine for `lanes` threads.
    #[must_use]
    pub fn new(
        proxy: &Proxy,
        lanes: usize,
        seed: Seed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<Engine> {
        Engine::behind(Vec::new(), proxy, lanes, seed, clock, watch)
    }

    /// The same, for requests that gatekeepers decide on before the limits do: on each the first
    /// that keeps its gate.
    #[must_use]
    pub fn behind(
        gatekeepers: Vec<Arc<Gatekeeper>>,
        proxy: &Proxy,
        lanes: usize,
        seed: Seed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<Engine> {
        let limiter = Limiter::new(policy(proxy), proxy.limits.clone(), seed);
        let (hosts, lookups) = named::hosts(&proxy.hosts, None, watch.registry());
        let rules = Arc::new(rules(proxy, limiter, seed, hosts));
        let tops = || proxy.limits.iter().map(|_| Top::new(proxy.names_max)).collect();
        let books = || Books {
            rules: Arc::clone(&rules),
            tops: tops(),
            spent: None,
            views: Views::default(),
            in_force: InForce::default(),
        };
        Arc::new(Engine {
            clock,
            meter: Mutex::new(Meter::new(virtual_clock(proxy))),
            estimates: Mutex::new(Estimates::new(ROUTES)),
            gate: Gate::new(proxy.queue.bounds(proxy.cpus), search(proxy)),
            lanes: (0..lanes.max(1)).map(|_| Arc::new(Mutex::new(books()))).collect(),
            rules: ArcSwap::new(Arc::clone(&rules)),
            lookups: Mutex::new(lookups),
            given: Mutex::new((proxy.clone(), 1.0)),
            elsewhere: Elsewhere::default(),
            gatekeepers,
            overrides: Overrides::default(),
            watch,
        })
    }

    /// Takes over a changed configuration; what clients owe stays owed.
    pub fn reload(&self, proxy: &Proxy) {
        let mut given = self.given.lock();
        given.0 = proxy.clone();
        self.take_over(&peers::scaled(proxy, given.1));
    }

    fn take_over(&self, proxy: &Proxy) {
        let now = self.clock.now();
        let old = self.rules.load();
        let limiter = old.limiter.reconfigured(policy(proxy), proxy.limits.clone(), now);
        let kept = |new: &Limit| {
            old.limiter.limits().iter().position(|old| old.name == new.name && old.by == new.by)
        };
        let resized = old.names_max != proxy.names_max;
        let kept = |new: &Limit| kept(new).filter(|_| !resized);
        let places: Vec<_> = limiter.limits().iter().map(kept).collect();
        let (hosts, lookups) =
            named::hosts(&proxy.hosts, old.hosts.as_ref(), self.watch.registry());
        if lookups.is_some() {
            *self.lookups.lock() = lookups;
        }
        let rules = Arc::new(rules(proxy, limiter, old.seed, hosts));
        self.gate.reload(proxy.queue.bounds(proxy.cpus), search(proxy), now);
        self.elsewhere.keep(&rules.marks);
        self.rules.store(Arc::clone(&rules));
        self.meter.lock().set_clock(virtual_clock(proxy), now);
        for lane in &self.lanes {
            let mut books = lane.lock();
            let mut before: Vec<Option<Top>> = books.tops.drain(..).map(Some).collect();
            let carried = places.iter().map(|place| {
                place
                    .and_then(|at| before.get_mut(at)?.take())
                    .unwrap_or_else(|| Top::new(proxy.names_max))
            });
            books.tops = carried.collect();
            books.rules = Arc::clone(&rules);
        }
    }

    /// The handle of thread `index`.
    #[must_use]
    pub fn lane(self: &Arc<Engine>, index: usize) -> Lane {
        let books = Arc::clone(&self.lanes[index % self.lanes.len()]);
        let (engine, stopped) = (Arc::clone(self), Stopped::default());
        Lane(Arc::new(Desk { engine, books, stopped, notes: None }))
    }

    /// The clock that everything is counted by.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The cgroup that says what requests cost all together, if there is one.
    #[must_use]
    pub fn cgroup(&self) -> Option<PathBuf> {
        match &self.rules.load().cost {
            CostSource::Cgroup(path) => Some(path.clone()),
            _ => None,
        }
    }

    /// So much it has used since that was said last; `None`: nobody knows.
    pub fn cgroup_used(&self, used: Option<Cost>) {
        let now = self.clock.now();
        let mut meter = self.meter.lock();
        match used {
            Some(used) => meter.used(used, now),
            None => meter.used_is_unknown(now),
        }
    }

    /// How many requests the backend works on now, and all it has worked so far.
    #[must_use]
    pub fn load(&self) -> (u32, Cost) {
        let now = self.clock.now();
        let meter = self.meter.lock();
        (meter.working(), meter.total(now))
    }

    /// Who waits for room, and who has it; `None` if nobody has to.
    #[must_use]
    pub fn crowd(&self) -> Option<Crowd> {
        self.rules.load().queues.then(|| self.gate.crowd())
    }
}

/// One of the heaviest clients, and how it stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its name, cost and requests.
    pub row: Row,
    /// What is left, in nano-units; below zero it is debt.
    pub level: Option<i64>,
    /// How long until it is within the limit.
    pub wait: Nanos,
}

fn policy(proxy: &Proxy) -> Policy {
    Policy { action: proxy.action, max_delay: proxy.max_delay }
}

fn rules(proxy: &Proxy, limiter: Limiter, seed: Seed, hosts: Option<Arc<KnownHosts>>) -> Rules {
    let actions = || {
        let enforced = limiter.limits().iter().filter(|limit| !limit.shadow);
        enforced.map(|limit| limit.action(proxy.action))
    };
    Rules {
        queues: proxy.action == Action::Queue || actions().any(|action| action == Action::Queue),
        foresees: actions().any(|action| action != Action::Hold),
        cpus: proxy.cpus,
        cost: proxy.cost.clone(),
        exempt: proxy.exempt.clone(),
        exempt_when: proxy.exempt_when.clone(),
        hosts,
        shadow: proxy.shadow,
        names_max: proxy.names_max,
        marks: Marks::new("proxy", limiter.limits()),
        hits: limiter.limits().iter().any(|limit| limit.unit == Unit::Hits),
        seed,
        limiter: Arc::new(limiter),
    }
}

/// The search for how many requests the backend can work on at once, where nobody said.
fn search(proxy: &Proxy) -> Option<Concurrency> {
    (proxy.queue.concurrency == settings::Concurrency::Auto).then(|| Concurrency::new(proxy.cpus))
}

fn virtual_clock(proxy: &Proxy) -> meter::Clock {
    match proxy.cost {
        CostSource::Wall => meter::Clock::Wall,
        CostSource::Shared | CostSource::Header(_) => meter::Clock::Shared { cpus: proxy.cpus },
        CostSource::Cgroup(_) => meter::Clock::Cgroup { cpus: proxy.cpus },
    }
}

/// One thread's way to the engine.
#[derive(Clone)]
pub struct Lane(Arc<Desk>);

/// What a lane and its open accounts share.
struct Desk {
    engine: Arc<Engine>,
    books: Arc<Mutex<Books>>,
    stopped: Stopped,
    /// What was decided, where somebody wants to know instead of a log.
    notes: Option<Mutex<Vec<Note>>>,
}

impl Desk {
    fn now(&self) -> Time {
        self.stopped.now(&self.engine.clock)
    }
}

/// The answer to an ask.
#[expect(clippy::large_enum_variant, reason = "nearly all pass; a box is an allocation for each")]
pub enum Asked {
    /// It may run, perhaps after [`Charge::delay_until`].
    Pass(Charge),
    /// It may not.
    Refused(Refusal),
}

/// Why a request was refused, as the client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the limit.
    pub limit: String,
    /// Whole seconds, at least one, after which the request would be let in.
    pub retry_after_secs: u64,
    /// Whether a limit in requests refused (429) or one in CPU time (503).
    pub by_rate: bool,
}

impl Lane {
    /// Runs `step`, for which time stands still: one reading of the clock, taken when it is first
    /// needed, serves all asks and charges of this lane within. Only for work that never waits.
    pub fn at_once<R>(&self, step: impl FnOnce() -> R) -> R {
        self.0.stopped.stop();
        let result = step();
        self.0.stopped.go();
        result
    }

    /// Decides on one request. Counts and logs the outcome.
    #[must_use]
    pub fn ask(&self, request: &impl Attributes) -> Asked {
        match self.begin(request) {
            Ok(begun) => self.conclude(begun, &[]),
            Err(refusal) => Asked::Refused(refusal),
        }
    }

    /// Finds out by what a request is counted; whoever counts for several instances may then be
    /// asked before this one [concludes](Lane::conclude).
    ///
    /// # Errors
    /// A gatekeeper does not let it pass; that has been told.
    pub fn begin(&self, request: &impl Attributes) -> Result<Begun, Refusal> {
        let now = self.0.now();
        let client = request.address();
        let entering = self.0.books.lock().enter(request, now);
        let Entering { rules, keys, exempt, weight, seen } = entering;
        let judged = self.judged(&rules, request, exempt, now)?;
        let foreseen = self.foreseen(&rules, request);
        let agent = served::agent(&rules, &keys, request);
        Ok(Begun { rules, keys, exempt, judged, foreseen, agent, client, weight, seen, came: now })
    }

    /// Decides. `words` are what others say of its buckets, in their order, who count for several
    /// instances; none if there are no such others.
    #[must_use]
    pub fn conclude(&self, begun: Begun, words: &[Option<Word>]) -> Asked {
        let Begun { rules, keys, exempt, judged, foreseen, agent, client, weight, seen, came } =
            begun;
        let now = self.0.now();
        let latest = if rules.queues { rules.limiter.latest(&keys, now) } else { None };
        let slot = turn::slot(&rules, &keys, exempt, latest, foreseen, client).weighed(weight);
        let (verdict, mut ticket) = match words {
            [] => rules.limiter.ask(&keys, foreseen.cost, now),
            words => rules.limiter.ask_told(&keys, words, foreseen.cost, now),
        };
        match verdict {
            Verdict::Deny { reason, retry_after } => {
                // A debt may be waited for in part.
                let told = Reason { wait: retry_after, ..reason };
                self.report(Ruling::new("reject", rules.shadow), &rules, client, told, None);
                if !rules.shadow {
                    return Asked::Refused(refusal(&rules, reason, retry_after));
                }
                ticket.count_nowhere();
            }
            Verdict::Delay(reason) => {
                self.report(Ruling::new("delay", rules.shadow), &rules, client, reason, None);
            }
            Verdict::Allow => {}
        }
        let in_shadow = self.report_shadows(&rules, &ticket, latest, client, now);
        if rules.hits && !matches!(verdict, Verdict::Deny { .. }) {
            // What a limit in shadow would have refused it has not counted, so nobody else shall.
            let counted = ticket.counted();
            self.0.books.lock().spend(&rules, &counted, Unit::Hits, Cost::hits(1));
        }
        let delayed = matches!(verdict, Verdict::Delay(_)) && !rules.shadow;
        let in_debt = latest.is_some() || in_shadow || verdict != Verdict::Allow;
        let passage = judged.map(|judged| judged.pass(Some(client)));
        let starts = passage.as_ref().and_then(Passage::until).max(Some(ticket.starts_at()));
        let waited = starts.unwrap_or(now).since(now);
        Asked::Pass(Charge {
            lane: self.clone(),
            rules,
            ticket,
            reported: verdict != Verdict::Allow || in_shadow,
            delayed,
            waited,
            client,
            reading: None,
            began: None,
            worked: Nanos::ZERO,
            cost: Cost::ZERO,
            stated: None,
            route: foreseen.route,
            slot,
            whole: true,
            steady: true,
            delivery: charge::delivery::Delivery::default(),
            stalled: false,
            left: false,
            told: None,
            agent,
            passage,
            tell: None,
            seen,
            came,
            tier: Tier::of(in_debt),
        })
    }

    /// What its gatekeeper makes of a request, if it has one.
    ///
    /// # Errors
    /// The request does not pass; that has been told.
    fn judged(
        &self,
        rules: &Rules,
        request: &impl Attributes,
        exempt: bool,
        now: Time,
    ) -> Result<Option<Judged>, Refusal> {
        let keepers = &self.0.engine.gatekeepers;
        if exempt || keepers.is_empty() {
            return Ok(None);
        }
        let client = request.address();
        let known = rules.known(client.to_canonical(), now);
        let named = Named { request, group: rules.group(known) };
        let keeper = keepers.iter().find(|keeper| keeper.keeps(&named));
        let Some(keeper) = keeper else { return Ok(None) };
        let judged = keeper.judge(keeper.identifier(&named), rules.shadow, now);
        let judged = judged.noting(keeper.log_info(&named));
        let Some(wait) = judged.refused() else { return Ok(Some(judged)) };
        judged.refuse(Some(client));
        Err(Refusal {
            limit: keeper.domain().to_owned(),
            retry_after_secs: wait.retry_after_secs(),
            by_rate: false,
        })
    }

    /// Which route a request takes, and what it will probably cost; nothing where no limit asks.
    fn foreseen(&self, rules: &Rules, request: &impl Attributes) -> Foreseen {
        if !rules.foresees {
            return Foreseen::default();
        }
        let path = classify::normal_path(request.path());
        let route = RouteHash::of(&rules.seed, request.method(), &path);
        self.0.engine.estimates.lock().foresee(route)
    }

    /// Whether requests wait for room.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.0.engine.gate.is_crowded()
    }

    /// Refuses requests that have waited for room for too long. To be called a few times a second.
    pub fn expire(&self) {
        self.0.engine.gate.expire(self.0.now());
    }
}

impl Books {
    /// What people call a key, if it is among the heaviest.
    fn name(&self, index: usize, hash: KeyHash) -> Option<String> {
        self.tops.get(index).and_then(|top| top.name(hash))
    }

    /// Finds the rules and the keys that a request is counted by, and whether it is exempt. Makes
    /// sure that the keys have names in the lists of the heaviest.
    fn enter(&mut self, request: &impl Attributes, now: Time) -> Entering {
        let Books { rules, tops, views, in_force, .. } = self;
        let seen = views.touch(&rules.seed, request, now);
        let exempt = |rules: &Arc<Rules>| Entering {
            rules: Arc::clone(rules),
            keys: Keys::default(),
            exempt: true,
            weight: Weight::ONE,
            seen,
        };
        let client = request.address().to_canonical();
        if rules.exempt.iter().any(|net| net.contains(&client))
            || rules.exempt_when.iter().any(|when| classify::applies(when, request))
        {
            return exempt(rules);
        }
        let known = rules.known(client, now);
        if known.exempt {
            return exempt(rules);
        }
        let request = &Named { request, group: rules.group(known) };
        let keys = rules.limiter.keys(request);
        let Effect::Weigh(weight) = in_force.of(&keys, now) else { return exempt(rules) };
        for key in keys.as_slice() {
            let index = usize::from(key.limit);
            if let (Some(top), Some(limit)) =
                (tops.get_mut(index), rules.limiter.limits().get(index))
            {
                top.touch(key.hash, now, || classify::name(limit, request, key.hash));
            }
        }
        Entering { rules: Arc::clone(rules), keys, exempt: false, weight, seen }
    }
}

fn refusal(rules: &Rules, reason: Reason, retry_after: Nanos) -> Refusal {
    let limit = &rules.limiter.limits()[usize::from(reason.key.limit)];
    Refusal {
        limit: limit.name.to_string(),
        retry_after_secs: retry_after.retry_after_secs(),
        by_rate: limit.unit == Unit::Hits,
    }
}
