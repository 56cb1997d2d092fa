//! The decision engine of requests, as the doors share it: the limiter, the meter and the lists of
//! the heaviest clients. It reads the clock and counts the outcomes.
//!
//! It makes no decisions (the core does) and knows no protocol (the doors do). A door asks through
//! its [`EngineLane`] and gets a [`Charge`], the open account of one request. A charge settles
//! itself when it is dropped, however the request ended. The order in which locks are taken:
//! [`Engine`]. How requests wait for a slot: `turn`.

mod admission;
mod charge;
mod host_names;
mod peers;
mod quotas;
mod served;
mod turn;

pub use admission::AdmissionStats;
pub use charge::pending::PendingRequest;
pub use charge::{Charge, CostCallback};
pub use quotas::Quota;
pub use served::{PlaybackNote, ServedReport, StartWait};
pub use turn::{QueueAdmission, QueueTurn, TurnResult};

pub mod domains;
pub mod replicated;
pub mod tags;
pub mod view;
pub mod windows;

use admission::AdmissionQueue;
use arc_swap::ArcSwap;
use domains::gatekeeper::{GatekeeperEngine, OrderCheck, OrderGuard};
use evenkeel_config::settings::{self, CostSource, ProxySettings};
use evenkeel_core::classify::{self, LimitKeys, RequestAttributes};
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::{Limit, LimitAction, LimitCondition, LimitUnit};
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Reason, Verdict};
use evenkeel_core::meter::estimate::{CostForecast, Estimates, RouteHash};
use evenkeel_core::meter::{self, Meter};
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::top::{TopClient, TopClients};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};
use evenkeel_identity::hosts::HostDirectory;
use evenkeel_runtime::clock::{Clock, FrozenClock};
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::tiers::Tier;
use host_names::{GroupedRequest, NameLookups};
use ipnet::IpNet;
use parking_lot::Mutex;
use replicated::{LimitIds, PendingDeltas, RemoteTops};
use served::ruling::ReportedOutcome;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use view::overrides::{OverrideEffect, OverrideIndex, Overrides};
use view::views::{TopViews, ViewKeys};

/// A client that has sent no request for this long is left out of the client counts.
const CLIENT_GONE_AFTER: Nanos = Nanos::from_secs(60);
/// The number of routes for which a usual cost is learned, at 48 bytes each.
const ROUTES_MAX: usize = 4_096;

/// The parts of a door's configuration that the engine uses. A reload replaces them as a whole.
struct EngineRules {
    limiter: Arc<Limiter>,
    cpus: f64,
    cost: CostSource,
    exempt: Vec<IpNet>,
    exempt_when: Vec<LimitCondition>,
    /// The table of client names and their groups; `None` if no limit or exemption depends on
    /// names.
    hosts: Option<Arc<HostDirectory>>,
    shadow: bool,
    seed: KeySeed,
    /// Whether any action is `queue`, so that requests wait for a slot.
    queues: bool,
    /// Whether an enforced limit needs an estimate of the cost before the request runs.
    foresees: bool,
    /// The number of clients that each limit remembers by name, per lane.
    names_max: usize,
    /// The fingerprints by which other instances know the limits.
    marks: LimitIds,
    /// Whether a limit counts hits. Hits are charged when a request is admitted.
    hits: bool,
}

/// The limiter, the meter, the queue and the lists of the heaviest clients, shared by all threads
/// of a door.
///
/// # Lock order
///
/// A request takes these locks one after the other, and releases each before it takes the next: the
/// `LaneState` of its lane (`begin`), `estimates` (`foreseen`), `gate` (`turn`), `meter` (`work`
/// and `rest`), `gate` again (at the end), and the `LaneState` again (when its [`Charge`] is
/// dropped). A lock may be taken while another one is held only in these cases:
///
/// - `gate`, then `estimates`: `AdmissionQueue::done` calls its `learn` closure with the gate
///   locked. Code that holds `estimates` must therefore not call the gate.
/// - the `LaneState` of a lane, then the lock of [`HostDirectory`]: `LaneState::enter` looks up the
///   client's name.
/// - `given`, then each of `lookups`, the metrics registry, `gate`, `elsewhere`, `meter` and the
///   `LaneState` of one lane at a time: `reload` and `set_total_cpus` hold `given` all the time, so
///   that only one of them changes the rules. Code that holds one of the others must therefore not
///   lock `given`.
/// - `overrides`, then the `LaneState` of one lane at a time: a change of the overrides is copied to
///   all lanes before the next change. Code that holds a `LaneState` must therefore not lock
///   `overrides`.
///
/// The spin bits of the limiter's buckets come last: they are taken with `LaneState` locked, and no
/// lock is taken while one is held. `meter`, `estimates`, `lookups` and `elsewhere` are
/// never held while another lock is taken, nor are the `LaneState` of two lanes locked at once.
pub struct Engine {
    clock: Clock,
    rules: ArcSwap<EngineRules>,
    meter: Mutex<Meter>,
    gate: AdmissionQueue,
    /// The usual cost of requests, by route. May be locked with the gate locked, never the other
    /// way round.
    estimates: Mutex<Estimates>,
    lanes: Vec<Arc<Mutex<LaneState>>>,
    watch: Arc<Watch>,
    /// The queue of clients to look up by name, until a task takes it with [`Engine::lookups`].
    lookups: Mutex<Option<NameLookups>>,
    /// The settings as configured, and the factor by which the CPUs of all instances together
    /// exceed the configured number. The outermost lock: see [`Engine`].
    given: Mutex<(ProxySettings, f64)>,
    /// The heaviest clients as other instances report them.
    elsewhere: RemoteTops,
    /// The gatekeepers that decide on requests before the limits do.
    gatekeepers: Vec<Arc<GatekeeperEngine>>,
    /// The overrides that operators have set for single clients.
    overrides: Overrides,
}

/// The state of one lane, behind a lock of its own. Only `reload`, the peers and the admin door
/// contend for it. For locks inside this one see [`Engine`].
struct LaneState {
    rules: Arc<EngineRules>,
    /// The heaviest clients of each limit, in the order of the limits.
    tops: Vec<TopClients>,
    /// The charges to report to other instances; `None` unless instances count together.
    spent: Option<PendingDeltas>,
    /// The heaviest routes and user agents, which no limit counts by.
    views: TopViews,
    /// A sorted copy of the overrides that operators have set.
    in_force: OverrideIndex,
}

/// A request with the rules and keys that it is counted by.
struct KeyedRequest {
    rules: Arc<EngineRules>,
    keys: LimitKeys,
    exempt: bool,
    /// The weight that an operator has set for its client; one if there is none.
    weight: Weight,
    seen: ViewKeys,
}

impl Engine {
    /// Makes an engine for `lanes` threads, without gatekeepers.
    #[must_use]
    pub fn new(
        proxy: &ProxySettings,
        lanes: usize,
        seed: KeySeed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<Engine> {
        Engine::with_gatekeepers(Vec::new(), proxy, lanes, seed, clock, watch)
    }

    /// Makes an engine for requests that gatekeepers decide on before the limits do. The first
    /// gatekeeper whose condition matches a request decides on it.
    #[must_use]
    pub fn with_gatekeepers(
        gatekeepers: Vec<Arc<GatekeeperEngine>>,
        proxy: &ProxySettings,
        lanes: usize,
        seed: KeySeed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<Engine> {
        let limiter = Limiter::new(policy(proxy), proxy.limits.clone(), seed);
        let (hosts, lookups) = host_names::hosts(&proxy.hosts, None, watch.registry());
        let rules = Arc::new(rules(proxy, limiter, seed, hosts));
        let tops = || proxy.limits.iter().map(|_| TopClients::new(proxy.names_max)).collect();
        let books = || LaneState {
            rules: Arc::clone(&rules),
            tops: tops(),
            spent: None,
            views: TopViews::default(),
            in_force: OverrideIndex::default(),
        };
        Arc::new(Engine {
            clock,
            meter: Mutex::new(Meter::new(virtual_clock(proxy))),
            estimates: Mutex::new(Estimates::new(ROUTES_MAX)),
            gate: AdmissionQueue::new(proxy.queue.bounds(proxy.cpus), search(proxy)),
            lanes: (0..lanes.max(1)).map(|_| Arc::new(Mutex::new(books()))).collect(),
            rules: ArcSwap::new(Arc::clone(&rules)),
            lookups: Mutex::new(lookups),
            given: Mutex::new((proxy.clone(), 1.0)),
            elsewhere: RemoteTops::default(),
            gatekeepers,
            overrides: Overrides::default(),
            watch,
        })
    }

    /// Applies a changed configuration. Debts are kept. Holds `given` while it takes the other
    /// locks one at a time.
    pub fn reload(&self, proxy: &ProxySettings) {
        // Lock order: the outermost lock, held while `take_over` takes the others.
        let mut given = self.given.lock();
        given.0 = proxy.clone();
        self.take_over(&peers::scaled(proxy, given.1));
    }

    fn take_over(&self, proxy: &ProxySettings) {
        let now = self.clock.now();
        let old = self.rules.load();
        let limiter = old.limiter.reconfigured(policy(proxy), proxy.limits.clone(), now);
        let resized = old.names_max != proxy.names_max;
        let same = |a: &Limit, b: &Limit| a.name == b.name && a.by == b.by && !resized;
        let kept = |new| old.limiter.limits().iter().position(|old| same(old, new));
        let places: Vec<_> = limiter.limits().iter().map(kept).collect();
        let (hosts, lookups) =
            host_names::hosts(&proxy.hosts, old.hosts.as_ref(), self.watch.registry());
        if lookups.is_some() {
            *self.lookups.lock() = lookups;
        }
        let rules = Arc::new(rules(proxy, limiter, old.seed, hosts));
        self.gate.reload(proxy.queue.bounds(proxy.cpus), search(proxy), now);
        self.elsewhere.keep(&rules.marks);
        self.rules.store(Arc::clone(&rules));
        self.meter.lock().set_clock(virtual_clock(proxy), now);
        for lane in &self.lanes {
            // One lane at a time, with only `given` locked.
            let mut books = lane.lock();
            let mut before: Vec<Option<TopClients>> = books.tops.drain(..).map(Some).collect();
            let carried = places.iter().map(|place| {
                place
                    .and_then(|at| before.get_mut(at)?.take())
                    .unwrap_or_else(|| TopClients::new(proxy.names_max))
            });
            books.tops = carried.collect();
            books.rules = Arc::clone(&rules);
        }
    }

    /// Returns the handle of thread `index`.
    #[must_use]
    pub fn lane(self: &Arc<Engine>, index: usize) -> EngineLane {
        let books = Arc::clone(&self.lanes[index % self.lanes.len()]);
        let (engine, stopped) = (Arc::clone(self), FrozenClock::default());
        EngineLane(Arc::new(LaneShared { engine, books, stopped, notes: None }))
    }

    /// The clock that all accounts of this engine go by.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The cgroup from which the total cost of requests is read; `None` for any other cost source.
    #[must_use]
    pub fn cgroup(&self) -> Option<PathBuf> {
        match &self.rules.load().cost {
            CostSource::Cgroup(path) => Some(path.clone()),
            _ => None,
        }
    }

    /// Reports the CPU time that the cgroup has used since the last report; `None` if it is
    /// unknown.
    pub fn cgroup_used(&self, used: Option<Cost>) {
        let now = self.clock.now();
        let mut meter = self.meter.lock();
        match used {
            Some(used) => meter.used(used, now),
            None => meter.note_usage_unknown(now),
        }
    }

    /// The number of requests that the backend works on now, and the cost of all its work so far.
    #[must_use]
    pub fn load(&self) -> (u32, Cost) {
        let now = self.clock.now();
        let meter = self.meter.lock();
        (meter.working(), meter.total(now))
    }

    /// The state of the admission queue; `None` if no action is `queue`.
    #[must_use]
    pub fn admission_stats(&self) -> Option<AdmissionStats> {
        self.rules.load().queues.then(|| self.gate.stats())
    }
}

/// One of the heaviest clients, with the state of its bucket.
#[derive(Clone, Debug)]
pub struct HeavyClient {
    /// The client's name, cost and number of requests.
    pub row: TopClient,
    /// The rest in the client's bucket, in nano-units. A negative level is debt.
    pub level: Option<i64>,
    /// The time until the client is within the limit.
    pub wait: Nanos,
}

fn policy(proxy: &ProxySettings) -> LimiterPolicy {
    LimiterPolicy { action: proxy.action, max_delay: proxy.max_delay }
}

fn rules(
    proxy: &ProxySettings,
    limiter: Limiter,
    seed: KeySeed,
    hosts: Option<Arc<HostDirectory>>,
) -> EngineRules {
    let actions = || {
        let enforced = limiter.limits().iter().filter(|limit| !limit.shadow);
        enforced.map(|limit| limit.action(proxy.action))
    };
    EngineRules {
        queues: proxy.action == LimitAction::Queue
            || actions().any(|action| action == LimitAction::Queue),
        foresees: actions().any(|action| action != LimitAction::Hold),
        cpus: proxy.cpus,
        cost: proxy.cost.clone(),
        exempt: proxy.exempt.clone(),
        exempt_when: proxy.exempt_when.clone(),
        hosts,
        shadow: proxy.shadow,
        names_max: proxy.names_max,
        marks: LimitIds::new("proxy", limiter.limits()),
        hits: limiter.limits().iter().any(|limit| limit.unit == LimitUnit::Hits),
        seed,
        limiter: Arc::new(limiter),
    }
}

/// The search for the number of requests that the backend can work on at once; `None` if that
/// number is configured.
fn search(proxy: &ProxySettings) -> Option<ConcurrencySearch> {
    (proxy.queue.concurrency == settings::ConcurrencySetting::Auto)
        .then(|| ConcurrencySearch::new(proxy.cpus))
}

fn virtual_clock(proxy: &ProxySettings) -> meter::CpuClock {
    match proxy.cost {
        CostSource::Wall => meter::CpuClock::Wall,
        CostSource::Shared | CostSource::Header(_) => meter::CpuClock::Shared { cpus: proxy.cpus },
        CostSource::Cgroup(_) => meter::CpuClock::Cgroup { cpus: proxy.cpus },
    }
}

/// The engine handle of one thread.
#[derive(Clone)]
pub struct EngineLane(Arc<LaneShared>);

/// State that a lane shares with its open accounts.
struct LaneShared {
    engine: Arc<Engine>,
    books: Arc<Mutex<LaneState>>,
    stopped: FrozenClock,
    /// The decisions of a playback, which are noted here instead of logged.
    notes: Option<Mutex<Vec<PlaybackNote>>>,
}

impl LaneShared {
    fn now(&self) -> Time {
        self.stopped.now(&self.engine.clock)
    }
}

/// The decision on a request.
#[expect(clippy::large_enum_variant, reason = "nearly all pass; a box is an allocation for each")]
pub enum AskOutcome {
    /// The request may run, perhaps only after [`Charge::delay_until`].
    Pass(Charge),
    /// The request may not run.
    Refused(RequestRefusal),
}

/// Why a request was refused, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRefusal {
    /// The name of the limit or of the gatekeeper's domain.
    pub limit: String,
    /// The number of seconds, at least one, after which the request would be admitted.
    pub retry_after_secs: u64,
    /// Whether a limit in hits refused (status 429) or not (503).
    pub by_rate: bool,
}

impl EngineLane {
    /// Runs `step` with this lane's time stopped: the clock is read once, when it is first needed,
    /// for all asks and charges within. Only for work that never waits.
    pub fn at_once<R>(&self, step: impl FnOnce() -> R) -> R {
        self.0.stopped.stop();
        let result = step();
        self.0.stopped.go();
        result
    }

    /// Decides on one request. Counts and logs the outcome.
    #[must_use]
    pub fn ask(&self, request: &impl RequestAttributes) -> AskOutcome {
        match self.begin(request) {
            Ok(begun) => self.conclude(begun, &[]),
            Err(refusal) => AskOutcome::Refused(refusal),
        }
    }

    /// Finds the buckets that a request is counted by. A store that counts for several instances
    /// may then be asked before the lane [concludes](EngineLane::conclude).
    ///
    /// # Errors
    /// A gatekeeper refuses the request. The refusal is already counted and logged.
    pub fn begin(
        &self,
        request: &impl RequestAttributes,
    ) -> Result<PendingRequest, RequestRefusal> {
        let now = self.0.now();
        let client = request.address();
        // Lock order: the books are locked, and `enter` locks `HostDirectory`.
        let entering = self.0.books.lock().enter(request, now);
        let KeyedRequest { rules, keys, exempt, weight, seen } = entering;
        let judged = self.judged(&rules, request, exempt, now)?;
        let foreseen = self.foreseen(&rules, request);
        let agent = served::agent(&rules, &keys, request);
        Ok(PendingRequest {
            rules,
            keys,
            exempt,
            judged,
            foreseen,
            agent,
            client,
            weight,
            seen,
            came: now,
        })
    }

    /// Decides on a request. `words` holds the answers of a store about the request's buckets, in
    /// the order of its keys. It is empty if there is no store or no answer.
    #[must_use]
    pub fn conclude(
        &self,
        begun: PendingRequest,
        words: &[Option<StoreBucketState>],
    ) -> AskOutcome {
        let PendingRequest {
            rules,
            keys,
            exempt,
            judged,
            foreseen,
            agent,
            client,
            weight,
            seen,
            came,
        } = begun;
        let now = self.0.now();
        let latest = rules.queues.then(|| rules.limiter.furthest_in_debt(&keys, now)).flatten();
        let slot = turn::slot(&rules, &keys, exempt, latest, foreseen, client).weighed(weight);
        let (verdict, mut ticket) = match words {
            [] => rules.limiter.ask(&keys, foreseen.cost, now),
            words => rules.limiter.ask_with_remote(&keys, words, foreseen.cost, now),
        };
        if let Some(refusal) = self.report_verdict(&rules, verdict, client) {
            return AskOutcome::Refused(refusal);
        }
        if matches!(verdict, Verdict::Deny { .. }) {
            ticket.exclude_from_charges();
        }
        let in_shadow = self.report_shadows(&rules, &ticket, latest, client, now);
        if rules.hits && !matches!(verdict, Verdict::Deny { .. }) {
            // Without the limits in shadow that would have refused the request.
            let counted = ticket.counted();
            self.0.books.lock().spend(&rules, &counted, LimitUnit::Hits, Cost::hits(1));
        }
        let delayed = matches!(verdict, Verdict::Delay(_)) && !rules.shadow;
        let in_debt = latest.is_some() || in_shadow || verdict != Verdict::Allow;
        let passage = judged.map(|judged| judged.pass(Some(client)));
        let starts = passage.as_ref().and_then(OrderGuard::until).max(Some(ticket.starts_at()));
        let waited = starts.unwrap_or(now).since(now);
        AskOutcome::Pass(Charge {
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

    /// Counts and logs a verdict that is not `Allow`. Returns the refusal unless in shadow.
    fn report_verdict(
        &self,
        rules: &Arc<EngineRules>,
        verdict: Verdict,
        client: IpAddr,
    ) -> Option<RequestRefusal> {
        let report = |outcome, reason| {
            let outcome = ReportedOutcome::new(outcome, rules.shadow);
            self.report(outcome, rules, client, reason, None);
        };
        match verdict {
            Verdict::Deny { reason, retry_after } => {
                // The log shows how long the client has to wait, which may be less than it takes to
                // pay the whole debt.
                report("reject", Reason { wait: retry_after, ..reason });
                (!rules.shadow).then(|| refusal(rules, reason, retry_after))
            }
            Verdict::Delay(reason) => {
                report("delay", reason);
                None
            }
            Verdict::Allow => None,
        }
    }

    /// Asks the first gatekeeper whose condition matches the request, if there is one.
    ///
    /// # Errors
    /// The gatekeeper refuses the request. The refusal is already counted and logged.
    fn judged(
        &self,
        rules: &EngineRules,
        request: &impl RequestAttributes,
        exempt: bool,
        now: Time,
    ) -> Result<Option<OrderCheck>, RequestRefusal> {
        let keepers = &self.0.engine.gatekeepers;
        if exempt || keepers.is_empty() {
            return Ok(None);
        }
        let client = request.address();
        let known = rules.known(client.to_canonical(), now);
        let named = GroupedRequest { request, group: rules.group(known) };
        let keeper = keepers.iter().find(|keeper| keeper.applies_to(&named));
        let Some(keeper) = keeper else { return Ok(None) };
        let judged = keeper.judge(keeper.identifier(&named), rules.shadow, now);
        let judged = judged.noting(keeper.log_info(&named));
        let Some(wait) = judged.refused() else { return Ok(Some(judged)) };
        judged.refuse(Some(client));
        Err(RequestRefusal {
            limit: keeper.domain().to_owned(),
            retry_after_secs: wait.retry_after_secs(),
            by_rate: false,
        })
    }

    /// The request's route and its estimated cost; the default if no limit needs an estimate.
    fn foreseen(&self, rules: &EngineRules, request: &impl RequestAttributes) -> CostForecast {
        if !rules.foresees {
            return CostForecast::default();
        }
        let path = classify::normal_path(request.path());
        let route = RouteHash::of(&rules.seed, request.method(), &path);
        self.0.engine.estimates.lock().forecast(route)
    }

    /// Whether requests are waiting for a slot.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.0.engine.gate.is_crowded()
    }

    /// Refuses requests that have waited for a slot for too long. Call it a few times a second.
    pub fn expire(&self) {
        self.0.engine.gate.expire(self.0.now());
    }
}

impl LaneState {
    /// The readable name of a key, if the key is among the heaviest.
    fn name(&self, rules: &Arc<EngineRules>, index: usize, hash: KeyHash) -> Option<String> {
        self.tops.get(self.place(rules, index)?).and_then(|top| top.name(hash))
    }

    /// The heaviest clients of the limit at `index` of `rules`; `None` if there is no such limit
    /// now.
    fn top(&mut self, rules: &Arc<EngineRules>, index: usize) -> Option<&mut TopClients> {
        let place = self.place(rules, index)?;
        self.tops.get_mut(place)
    }

    /// The index that the limit at `index` of `rules` has now. A request that was open during a
    /// reload goes by the rules from before.
    fn place(&self, rules: &Arc<EngineRules>, index: usize) -> Option<usize> {
        if Arc::ptr_eq(rules, &self.rules) {
            return Some(index);
        }
        let old = rules.limiter.limits().get(index)?;
        let same = |new: &Limit| new.name == old.name && new.by == old.by;
        self.rules.limiter.limits().iter().position(same)
    }

    /// Finds the rules and the keys that a request is counted by, and whether it is exempt. Gives
    /// the keys names in the lists of the heaviest. Takes the lock of [`HostDirectory`], while the
    /// books are locked.
    fn enter(&mut self, request: &impl RequestAttributes, now: Time) -> KeyedRequest {
        let LaneState { rules, tops, views, in_force, .. } = self;
        let seen = views.touch(&rules.seed, request, now);
        let exempt = |rules: &Arc<EngineRules>| KeyedRequest {
            rules: Arc::clone(rules),
            keys: LimitKeys::default(),
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
        let request = &GroupedRequest { request, group: rules.group(known) };
        let keys = rules.limiter.keys(request);
        let OverrideEffect::Weigh(weight) = in_force.of(&keys, now) else { return exempt(rules) };
        for key in keys.as_slice() {
            let index = usize::from(key.limit);
            if let (Some(top), Some(limit)) =
                (tops.get_mut(index), rules.limiter.limits().get(index))
            {
                top.touch(key.hash, now, || classify::name(limit, request, key.hash));
            }
        }
        KeyedRequest { rules: Arc::clone(rules), keys, exempt: false, weight, seen }
    }
}

fn refusal(rules: &EngineRules, reason: Reason, retry_after: Nanos) -> RequestRefusal {
    let limit = &rules.limiter.limits()[usize::from(reason.key.limit)];
    RequestRefusal {
        limit: limit.name.to_string(),
        retry_after_secs: retry_after.retry_after_secs(),
        by_rate: limit.unit == LimitUnit::Hits,
    }
}
