//! The engine of requests, which the threads of a door share, and the order of its locks.
//!
//! It holds what all threads use: the rules, the meter, the queue, the estimates and the lists of
//! the heaviest clients. How a request is decided on: `ask`. How its account is kept: `charge`. As
//! one of several instances: `peers`.

mod peers;
mod reports;

use crate::admission::{AdmissionQueue, AdmissionStats, VisitorStats};
use crate::backends::SharedBackends;
use crate::domains::gatekeeper::GatekeeperEngine;
use crate::forecast::OutputRates;
use crate::host_names::{self, NameLookups};
use crate::known_request::KnownRequest;
use crate::open_requests::{OpenRequestList, OpenRequests};
use crate::replicated::queue::SharedAdmission;
use crate::rules::{self, EngineRules};
use crate::shards::{LaneState, Shards};
use crate::swarm::{BurningReport, SwarmWatch};
use crate::view::overrides::{ClientOrder, GroupOrders, Override, OverrideIndex, Overrides};
use crate::view::views::{TopViews, ViewKeys};
use arc_swap::ArcSwapOption;
use evenkeel_config::settings::{CostSource, ProxySettings};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::{self, LimitKeys, RequestAttributes, RequestReading};
use evenkeel_core::condition::Truth;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::LimitUnit;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::meter::Meter;
use evenkeel_core::meter::estimate::Estimates;
use evenkeel_core::queue::QueueSettings;
use evenkeel_core::queue::concurrency::CONCURRENCY_MAX;
use evenkeel_core::queue::shared::SharedQueueReport;
use evenkeel_core::units::{Cost, Time, Weight};
use evenkeel_identity::networks::live::NetworkTables;
use evenkeel_identity::robots::Robots;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use parking_lot::{Mutex, MutexGuard};
use std::path::PathBuf;
use std::sync::Arc;

/// The number of routes for which a usual cost is learned, at 56 bytes each.
const ROUTES_MAX: usize = 4_096;
/// The smallest relative change of the measured capacity for which a new limiter is made.
const RATE_CHANGE_MIN: f64 = 0.2;
/// The number of pairs of a route and a client for which the same is learned, at 56 bytes each.
const OWN_ROUTES_MAX: usize = 16_384;

/// The limiter, the meter, the queue and the lists of the heaviest clients, shared by all threads
/// of a door.
///
/// # Lock order
///
/// A request takes these locks one after the other, and releases each before it takes the next: the
/// `LaneState` of its lane (`begin`), `estimates` (`foreseen`), `gate` (`turn`), the `LaneState`
/// (when it waits, and when the backend gets it), `meter` (`work` and `rest`), `gate` again (at the
/// end), and the `LaneState` again (when its `Charge` ends).
/// A lock may be taken while another one is held only in these cases:
///
/// - `gate`, then `estimates`: `AdmissionQueue::done` calls its `learn` closure with the gate
///   locked. Code that holds `estimates` must therefore not call the gate.
/// - the `LaneState` of a lane, then the lock of the `HostDirectory`: `LaneState::enter` looks up
///   the client's name.
/// - `given`, then each of `lookups`, the metrics registry, `gate`, `elsewhere`, `meter` and the
///   `LaneState` of one lane at a time: `reload` and `set_total_cpus` hold `given` all the time, so
///   that only one of them changes the rules. Code that holds one of the others must therefore not
///   lock `given`.
/// - `overrides`, then the `LaneState` of one lane at a time: a change of the overrides is copied
///   to all lanes before the next change. Code that holds a `LaneState` must therefore not lock
///   `overrides`.
///
/// The locks of `backends` are taken alone, its `bounds` before its `known`. That of `output_rates`
/// is taken alone too.
///
/// The spin bits of the limiter's buckets come last: they are taken with `LaneState` locked, and no
/// lock is taken while one is held. `meter`, `estimates`, `lookups` and `elsewhere` are
/// never held while another lock is taken, nor are the `LaneState` of two lanes locked at once.
/// `elsewhere` and the `LaneState` are parts of `Shards`.
pub struct Engine {
    pub(crate) shards: Shards<EngineRules, RequestLists>,
    meter: Mutex<Meter>,
    pub(crate) gate: AdmissionQueue,
    /// The common properties of strangers at the gate.
    pub(crate) swarm: SwarmWatch,
    /// The usual cost of requests, by route. May be locked with the gate locked, never the other
    /// way round.
    pub(crate) estimates: Mutex<Estimates>,
    pub(crate) output_rates: OutputRates,
    pub(crate) watch: Arc<Watch>,
    /// The queue of clients to look up by name, until a task takes it with [`Engine::lookups`].
    pub(crate) lookups: Mutex<Option<NameLookups>>,
    /// The configured settings, and the capacity that shares refer to. The outermost lock: see
    /// [`Engine`].
    pub(crate) given: Mutex<GivenSettings>,
    /// The gatekeepers that decide on requests before the limits do.
    pub(crate) gatekeepers: Vec<Arc<GatekeeperEngine>>,
    /// The overrides that operators have set.
    pub(crate) overrides: Overrides,
    /// The robots that requests are compared with; `None` if there are none.
    pub(crate) robots: ArcSwapOption<Robots>,
    /// Facts about the networks of clients, from files.
    networks: Arc<NetworkTables>,
    backends: SharedBackends,
}

/// The configured settings, and the capacity that shares refer to.
pub(crate) struct GivenSettings {
    pub(crate) proxy: ProxySettings,
    /// How many times the CPUs of all instances together exceed the configured number.
    pub(crate) together: f64,
    /// The measured capacity of the backend, in relation to the configured one.
    pub(crate) measured: f64,
}

impl GivenSettings {
    /// The settings for all CPUs, or for the measured capacity of the backend. Only limits with
    /// shares scale. The concurrency at the backend of this instance stays the same.
    pub(crate) fn scaled(&self) -> ProxySettings {
        let mut proxy = self.proxy.clone();
        proxy.cpus *= self.measured;
        for limit in &mut proxy.limits {
            if let (LimitUnit::Cpu, Algorithm::Debt(debt)) = (limit.unit, &limit.algorithm) {
                let scaled = debt.scaled(self.together).enlarged(self.measured);
                limit.algorithm = Algorithm::Debt(scaled);
            }
        }
        proxy
    }
}

/// The state of a lane of this engine beside the lists of its limits.
#[derive(Default)]
pub struct RequestLists {
    /// The heaviest routes and user agents, which no limit counts by.
    pub(crate) views: TopViews,
    /// A sorted copy of the overrides that operators have set.
    pub(crate) in_force: OverrideIndex,
    /// The requests that wait or are with the backend.
    pub(crate) open: OpenRequests,
}

/// A request with the rules and keys that it is counted by.
pub(crate) struct KeyedRequest {
    pub(crate) rules: Arc<EngineRules>,
    pub(crate) keys: LimitKeys,
    pub(crate) exempt: bool,
    /// Index of the rule that denies the request.
    pub(crate) denied: Option<usize>,
    /// The weight that an operator has set for its client; one if there is none.
    pub(crate) weight: Weight,
    /// The order of an operator that refuses the requests of its client.
    pub(crate) refused: Option<Arc<Override>>,
    /// The operators' orders for groups of strangers; empty if the request is exempt.
    pub(crate) orders: GroupOrders,
    pub(crate) seen: ViewKeys,
    /// Its entry in the list of open requests; `None` if the list is full.
    pub(crate) place: Option<u32>,
}

impl Engine {
    /// Makes an engine for `lanes` threads, without gatekeepers.
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
    /// gatekeeper with a condition that matches a request decides on it.
    pub fn with_gatekeepers(
        gatekeepers: Vec<Arc<GatekeeperEngine>>,
        proxy: &ProxySettings,
        lanes: usize,
        seed: KeySeed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<Engine> {
        let limiter = Limiter::new(rules::policy(proxy), proxy.limits.clone(), seed);
        let (hosts, lookups) = host_names::hosts(&proxy.hosts, None, watch.registry());
        let networks = Arc::default();
        let rules = rules::rules(proxy, limiter, seed, (hosts, &networks));
        let gate = AdmissionQueue::new(
            proxy.queue.bounds(proxy.cpus, proxy.cost.unit()),
            rules::search(proxy),
            clock,
        );
        gate.prepare_sharing(proxy.queue.shared, true, clock.now());
        Arc::new(Engine {
            shards: Shards::new(rules, lanes, clock, |_| RequestLists::default()),
            meter: Mutex::new(Meter::new(rules::virtual_clock(proxy))),
            estimates: Mutex::new(Estimates::new(ROUTES_MAX).with_clients(OWN_ROUTES_MAX)),
            output_rates: OutputRates::new(),
            gate,
            swarm: SwarmWatch::default(),
            lookups: Mutex::new(lookups),
            given: Mutex::new(GivenSettings { proxy: proxy.clone(), together: 1.0, measured: 1.0 }),
            gatekeepers,
            overrides: Overrides::default(),
            robots: ArcSwapOption::empty(),
            networks,
            backends: SharedBackends::default(),
            watch,
        })
    }

    /// Applies a changed configuration. Debts are kept. Holds `given` while it takes the other
    /// locks one at a time.
    pub fn reload(&self, proxy: &ProxySettings) {
        // Lock order: the outermost lock, held while `take_over` takes the others.
        let mut given = self.given.lock();
        given.proxy = proxy.clone();
        self.take_over(&given.scaled());
    }

    /// Lets shares refer to the measured capacity of the backend, if none is configured.
    pub(crate) fn follow_work_rate(&self) {
        if !self.shards.rules().measures_rate {
            return;
        }
        let Some(rate) = self.gate.work_rate() else { return };
        // Lock order: the outermost lock, held while `take_over` takes the others.
        let Some(mut given) = self.given.try_lock() else { return };
        let measured = rate / given.proxy.cpus.max(f64::EPSILON);
        if (measured / given.measured - 1.0).abs() >= RATE_CHANGE_MIN {
            given.measured = measured;
            self.take_over(&given.scaled());
        }
    }

    fn take_over(&self, proxy: &ProxySettings) {
        let now = self.shards.clock.now();
        let old = self.shards.rules();
        let limiter = old.limiter.reconfigured(rules::policy(proxy), proxy.limits.clone(), now);
        let (hosts, lookups) =
            host_names::hosts(&proxy.hosts, old.hosts.as_ref(), self.watch.registry());
        if lookups.is_some() {
            *self.lookups.lock() = lookups;
        }
        let bounds = proxy.queue.bounds(proxy.cpus, proxy.cost.unit());
        if proxy.shadow {
            // In shadow mode no request waits, so all that wait are released.
            let all = bounds.len_max.saturating_add(CONCURRENCY_MAX);
            let open = QueueSettings { concurrency: all, workers: None, ..bounds };
            self.gate.reload(open, None, now);
        }
        self.gate.reload(bounds, rules::search(proxy), now);
        self.gate.prepare_sharing(proxy.queue.shared, false, now);
        self.meter(now).set_clock(rules::virtual_clock(proxy), now);
        let rules = rules::rules(proxy, limiter, old.seed, (hosts, &self.networks));
        self.shards.replace(rules);
    }

    /// Locks the meter, which counts the requests that other instances have with the backend.
    pub(crate) fn meter(&self, now: Time) -> MutexGuard<'_, Meter> {
        let elsewhere = self.gate.running_elsewhere();
        let mut meter = self.meter.lock();
        meter.set_elsewhere(elsewhere, now);
        meter
    }

    /// The clock that all accounts of this engine go by.
    pub fn clock(&self) -> Clock {
        self.shards.clock
    }

    /// Facts about the networks of clients, from files. The tables are empty until the owner of the
    /// engine loads the files of the settings into them
    /// ([`LiveNetworks`](evenkeel_identity::networks::live::LiveNetworks)).
    pub fn networks(&self) -> &Arc<NetworkTables> {
        &self.networks
    }

    /// The cgroup from which the total cost of requests is read; `None` for any other cost source.
    pub fn cgroup(&self) -> Option<PathBuf> {
        match &self.shards.rules().cost {
            CostSource::Cgroup(path) => Some(path.clone()),
            _ => None,
        }
    }

    /// Reports the CPU time that the cgroup has used since the last report; `None` if it is
    /// unknown.
    pub fn cgroup_used(&self, used: Option<Cost>) {
        let now = self.shards.clock.now();
        let mut meter = self.meter(now);
        match used {
            Some(used) => meter.used(used, now),
            None => meter.note_usage_unknown(now),
        }
    }

    /// The processors of the backend, if it runs on this machine and the concurrency is searched
    /// for. Then [`Engine::processors_used`] is to be called a few times a second.
    pub fn watched_processors(&self) -> Option<WatchedProcessors> {
        let (rules, cgroup) = (self.shards.rules(), self.cgroup());
        let is_here = rules.is_local || cgroup.is_some();
        let watched = WatchedProcessors { cpus: rules.cpus, is_local: rules.is_local, cgroup };
        (is_here && self.gate.searches()).then_some(watched)
    }

    /// Reports in which part of the time since the last report the backend's processors were busy,
    /// from 0 to 1.
    pub fn processors_used(&self, part: f64) {
        self.gate.handle_processor_use(part, self.shards.clock.now());
    }

    /// The number of requests that the backend works on now, and the cost of all its work so far.
    pub fn load(&self) -> (u32, Cost) {
        let now = self.shards.clock.now();
        let meter = self.meter(now);
        (meter.working(), meter.total(now))
    }

    /// The oldest requests that are with the backend, at most `max`, and the one that has waited
    /// for longest. Locks the lanes one at a time.
    pub fn open_requests(&self, max: usize) -> OpenRequestList {
        let (mut list, now) = (OpenRequestList::default(), self.shards.clock.now());
        self.shards.for_each(|lane| lane.own.open.collect(&mut list, max, now));
        list
    }

    /// The state of the admission queue; `None` if no action is `queue`.
    pub fn admission_stats(&self) -> Option<AdmissionStats> {
        self.shards.rules().queues.then(|| self.gate.stats())
    }

    /// The state of the queue that this instance shares with others; `None` if it shares none.
    pub fn shared_queue_report(&self) -> Option<SharedQueueReport> {
        let rules = self.shards.rules();
        (rules.queues && rules.shares_queue).then(|| self.gate.report()).flatten()
    }

    /// The groups of strangers that burn; empty without pressure.
    pub fn burning(&self) -> Vec<BurningReport> {
        match self.gate.pressure_since() {
            Some(_) => self.swarm.burning(),
            None => Vec::new(),
        }
    }

    /// What is known of strangers and visitors; `None` if no action is `queue`.
    pub fn visitor_stats(&self) -> Option<VisitorStats> {
        let now = self.shards.clock.now();
        self.shards.rules().queues.then(|| self.gate.visitor_stats(now))
    }
}

/// What is known of the processors of a backend on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchedProcessors {
    /// Their number as configured.
    pub cpus: f64,
    /// Whether the addresses of all backends are on this machine.
    pub is_local: bool,
    /// The cgroup of the backend.
    pub cgroup: Option<PathBuf>,
}

impl LaneState<EngineRules, RequestLists> {
    /// Finds the rules and the keys that a request is counted by, and whether it is exempt. Gives
    /// the keys names in the lists of the heaviest. Takes the lock of [`HostDirectory`], while the
    /// books are locked.
    pub(crate) fn enter(
        &mut self,
        request: &KnownRequest<'_, impl RequestAttributes>,
        now: Time,
    ) -> KeyedRequest {
        let LaneState { rules, tops, own: RequestLists { views, in_force, open }, .. } = self;
        let seen = views.touch(&rules.seed, request, now);
        let place = open.insert(request);
        let exempt = |rules: &Arc<EngineRules>| KeyedRequest {
            rules: Arc::clone(rules),
            keys: LimitKeys::default(),
            exempt: true,
            denied: None,
            weight: Weight::ONE,
            refused: None,
            orders: GroupOrders::default(),
            seen,
            place,
        };
        let client = request.address().to_canonical();
        if rules.exempt.iter().any(|net| net.contains(&client)) {
            return exempt(rules);
        }
        let known = rules.known(client, now);
        if known.exempt {
            return exempt(rules);
        }
        let request = &request.in_group(rules.group(known));
        let reading = RequestReading::new(request);
        if rules.exempt_when.iter().any(|when| reading.truth(when) == Truth::Yes) {
            return exempt(rules);
        }
        let denied = rules.denials.iter().position(|rule| reading.truth(&rule.when) != Truth::No);
        let keys = rules.limiter.keys_of(&reading);
        let (weight, refused) = match in_force.order(&keys, now) {
            ClientOrder::Exempt => return exempt(rules),
            ClientOrder::Refuse(said) => (Weight::ONE, Some(said)),
            ClientOrder::Weigh(weight) => (weight, None),
        };
        for key in keys.as_slice() {
            let index = usize::from(key.limit);
            if let (Some(top), Some(limit)) =
                (tops.get_mut(index), rules.limiter.limits().get(index))
            {
                top.touch(key.hash, now, || classify::name(&limit.by, request, key.hash));
            }
        }
        let (rules, orders) = (Arc::clone(rules), in_force.groups().clone());
        KeyedRequest { rules, keys, exempt: false, denied, weight, refused, orders, seen, place }
    }

    /// Notes what a request costs in the units for which `cost` returns it, if instances count
    /// together.
    pub(crate) fn spend(
        &mut self,
        rules: &EngineRules,
        keys: &LimitKeys,
        cost: impl Fn(LimitUnit) -> Option<Cost>,
    ) {
        let Some(spent) = &mut self.spent else { return };
        for key in keys.as_slice() {
            let index = usize::from(key.limit);
            let limit = rules.limiter.limits().get(index);
            if let Some(cost) = limit.and_then(|limit| cost(limit.unit)) {
                spent.add(rules.marks.of(index), 0, key.hash, cost);
            }
        }
    }
}
