//! The engine of turns: programs take a turn, run, and give it back.
//!
//! A turn is a slot of the fair queue, and its client is a tag. A tag that has used more than its
//! share is in debt and waits behind the others. A turn costs what its program states, else the
//! time for which it was held. Turns that are held are in one list, so that a turn may be given
//! back over another connection than the one that took it. The door decides when a program has
//! gone; the order of turns is the core's.

mod peers;

use crate::admission::{AdmissionEntry, AdmissionQueue, NoSlot};
use crate::open_requests::OpenRequestList;
use crate::replicated::{LimitIds, SharedAdmission};
use crate::shards::{LaneState, LimitRules, Shards};
use crate::view::{BackendLoad, EngineView, HeavyClient, with_levels};
use evenkeel_config::settings::{ConcurrencySetting, TurnSettings};
use evenkeel_core::classify::prefix::hash;
use evenkeel_core::classify::{LimitKey, readable};
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::meter::estimate::{Estimates, RouteHash};
pub use evenkeel_core::queue::RefusalCause;
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::queue::standing::Visit;
use evenkeel_core::queue::{Arrival, QueuePlace, RequestId, WorkUnit};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_runtime::clock::Clock;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

/// The number of tags that are remembered by name, per lane.
const TOP_TAGS: usize = 1_000;
/// The number of tags for which a usual cost is learned, at 56 bytes each.
const TAGS_LEARNED_MAX: usize = 16_384;
/// The shortest time between two searches for turns that were held for too long.
const OVERDUE_INTERVAL: Nanos = Nanos::from_secs(1);
/// Turns wait for their place in the queue, never for a limit.
const POLICY: LimiterPolicy = LimiterPolicy { action: LimitAction::Queue, max_delay: Nanos::ZERO };

/// The settings in force. A reload replaces them as a whole.
pub struct TurnRules {
    limiter: Arc<Limiter>,
    marks: LimitIds,
    settings: TurnSettings,
}

/// The turns of a door, shared by its threads.
///
/// # Lock order
///
/// The lock of the queue, then that of `estimates`; every other lock is taken alone.
pub struct TurnEngine {
    shards: Shards<TurnRules, ()>,
    gate: AdmissionQueue,
    /// The usual cost of the turns of a tag.
    estimates: Mutex<Estimates>,
    held: Mutex<HeldTurns>,
    /// The number of turns so far, from which their ids follow.
    count: AtomicU64,
    /// The cost of all turns that have ended, in nano-units.
    spent: AtomicU64,
    /// The number of processors, where the search for slots begins.
    cpus: usize,
}

/// The turns that are held now.
#[derive(Default)]
struct HeldTurns {
    turns: HashMap<TurnId, HeldTurn>,
    /// When overdue turns were last searched for.
    searched: Time,
}

/// Names a turn that is held. It cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnId(pub u64);

/// A turn that is held.
#[derive(Clone, Copy, Debug)]
struct HeldTurn {
    request: RequestId,
    tag: KeyHash,
    since: Time,
}

/// The answer to a program that takes a turn.
pub enum TurnAnswer {
    /// It is the tag's turn.
    Turn(TurnId),
    /// The program waits.
    Waits(WaitingTurn),
    /// Too many programs wait.
    Full,
}

impl TurnEngine {
    /// Makes an engine for `lanes` threads.
    pub fn new(
        settings: &TurnSettings,
        lanes: usize,
        seed: KeySeed,
        clock: Clock,
        cpus: usize,
    ) -> Arc<TurnEngine> {
        let limiter = Limiter::new(POLICY, vec![settings.limit(cpus)], seed);
        let gate = AdmissionQueue::new(settings.bounds(cpus), search(settings, cpus), clock);
        gate.prepare_sharing(settings.shared, true, clock.now());
        Arc::new(TurnEngine {
            shards: Shards::new(rules(settings, limiter), lanes, clock, |_| ()),
            gate,
            estimates: Mutex::new(Estimates::new(TAGS_LEARNED_MAX)),
            held: Mutex::default(),
            count: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            cpus,
        })
    }

    /// Applies changed settings. Turns that are held or waited for stay.
    pub fn reload(&self, settings: &TurnSettings) {
        let (old, now) = (self.shards.rules(), self.shards.clock.now());
        let limits = vec![settings.limit(self.cpus)];
        let limiter = old.limiter.reconfigured(POLICY, limits, now);
        self.gate.reload(settings.bounds(self.cpus), search(settings, self.cpus), now);
        self.gate.prepare_sharing(settings.shared, false, now);
        self.shards.replace(rules(settings, limiter));
    }

    /// Returns the handle of thread `index`.
    pub fn lane(self: &Arc<TurnEngine>, index: usize) -> TurnLane {
        TurnLane { engine: Arc::clone(self), books: self.shards.lane(index) }
    }

    fn overdue(&self, now: Time) -> Vec<HeldTurn> {
        let hold_max = self.shards.rules().settings.hold_max;
        let mut held = self.held.lock();
        if now.since(held.searched) < OVERDUE_INTERVAL {
            return Vec::new();
        }
        held.searched = now;
        let overdue = |_: &TurnId, turn: &mut HeldTurn| now.since(turn.since) >= hold_max;
        held.turns.extract_if(overdue).map(|(_, turn)| turn).collect()
    }

    fn hold(&self, request: RequestId, tag: KeyHash, since: Time) -> TurnId {
        let mut hasher = KeyHasher::new(self.shards.rules().limiter.seed());
        hasher.part(&self.count.fetch_add(1, Relaxed).to_le_bytes());
        let id = TurnId(hasher.finish().bits());
        self.held.lock().turns.insert(id, HeldTurn { request, tag, since });
        id
    }
}

/// The route in the estimates that stands for a tag.
fn route(tag: KeyHash) -> RouteHash {
    RouteHash::UNKNOWN.used_by(tag)
}

/// The place in the queue of a tag.
fn place(rules: &TurnRules, tag: KeyHash, now: Time) -> QueuePlace {
    match rules.limiter.is_in_debt(0, tag, now) {
        true => QueuePlace::Debt(rules.marks.flow(LimitKey { limit: 0, hash: tag })),
        false => QueuePlace::Credit,
    }
}

fn search(settings: &TurnSettings, cpus: usize) -> Option<ConcurrencySearch> {
    let is_auto = settings.slots == ConcurrencySetting::Auto;
    is_auto.then(|| ConcurrencySearch::new(cpus as f64))
}

fn rules(settings: &TurnSettings, limiter: Limiter) -> TurnRules {
    let marks = LimitIds::new("turns", limiter.limits());
    TurnRules { limiter: Arc::new(limiter), marks, settings: settings.clone() }
}

impl LimitRules for TurnRules {
    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn marks(&self) -> &LimitIds {
        &self.marks
    }

    fn names_max(&self) -> usize {
        TOP_TAGS
    }
}

impl EngineView for TurnEngine {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(&self.shards.rules().limiter)
    }

    fn top(&self, index: usize) -> Vec<HeavyClient> {
        let rows = self.shards.rows(index, usize::MAX);
        with_levels(&self.shards.rules().limiter, index, rows, self.shards.clock.now())
    }

    fn work(&self) -> Option<BackendLoad> {
        let stats = self.gate.stats();
        let shared = self.shards.rules().settings.shared.then(|| self.gate.report()).flatten();
        Some(BackendLoad {
            working: u32::try_from(stats.running).unwrap_or(u32::MAX),
            unit: WorkUnit::CpuTime,
            is_slots: true,
            busy: Cost(self.spent.load(Relaxed)),
            unpaid: Cost::ZERO,
            cpus: stats.concurrency as f64,
            measures_rate: false,
            rate: None,
            crowd: Some(stats),
            shared,
            visitors: None,
            burning: Vec::new(),
            open: OpenRequestList::default(),
            reports: Arc::default(),
            measured: "turns".to_owned(),
        })
    }
}

/// The handle of one thread.
#[derive(Clone)]
pub struct TurnLane {
    engine: Arc<TurnEngine>,
    books: Arc<Mutex<LaneState<TurnRules, ()>>>,
}

impl TurnLane {
    /// A program with `tag` takes a turn. `cost`: what it expects to use, if it says so.
    pub fn take(&self, tag: &[u8], cost: Option<Cost>) -> TurnAnswer {
        let now = self.engine.shards.clock.now();
        let rules = self.engine.shards.rules();
        let hash = hash(tag, rules.limiter.seed());
        self.books.lock().tops[0].count(hash, 1, Cost::ZERO, now, || readable(tag));
        let route = route(hash);
        let foreseen = self.engine.estimates.lock().forecast(route, None);
        let arrival = Arrival {
            client: hash,
            place: place(&rules, hash, now),
            estimate: cost.unwrap_or(foreseen.cost),
            is_guess: cost.is_none() && foreseen.is_guess,
            route: cost.is_none().then_some(route),
            own: None,
            weight: rules.settings.weights.of(tag),
            visit: Visit::Unknown,
            accepts_waiting_page: false,
            burns: false,
        };
        match self.engine.gate.enter(arrival, false, now) {
            AdmissionEntry::Room(request) => TurnAnswer::Turn(self.engine.hold(request, hash, now)),
            AdmissionEntry::Waits(request) => {
                TurnAnswer::Waits(WaitingTurn { lane: self.clone(), request: Some(request), hash })
            }
            AdmissionEntry::NoSlot(_) => TurnAnswer::Full,
        }
    }

    /// The number of programs waiting here that would probably have their turns before one with
    /// `tag` that came now.
    pub fn ahead(&self, tag: &[u8]) -> usize {
        let rules = self.engine.shards.rules();
        let hash = hash(tag, rules.limiter.seed());
        self.engine.gate.ahead(hash, place(&rules, hash, self.engine.shards.clock.now()))
    }

    /// A turn is over, after `cost`; without it, after the time for which it was held. Returns
    /// false if it is not held any more.
    pub fn done(&self, id: TurnId, cost: Option<Cost>) -> bool {
        let turn = self.engine.held.lock().turns.remove(&id);
        turn.inspect(|turn| self.end(*turn, cost)).is_some()
    }

    fn end(&self, turn: HeldTurn, cost: Option<Cost>) {
        let TurnEngine { shards, gate, estimates, spent, .. } = &*self.engine;
        let now = shards.clock.now();
        let took = now.since(turn.since);
        let cost = cost.unwrap_or(Cost::cpu(took));
        shards.rules().limiter.absorb(0, turn.tag, cost, now, now);
        spent.fetch_add(cost.0, Relaxed);
        self.note(turn.tag, cost, now);
        let route = route(turn.tag);
        // Lock order: the queue is locked, and `learn` locks the estimates.
        let learn = || estimates.lock().learn_request(route, None, cost, now);
        gate.done(turn.request, cost, Some((route, took)), learn, now);
    }

    /// Notes the cost of a turn, for the list of the heaviest and for other instances.
    fn note(&self, tag: KeyHash, cost: Cost, now: Time) {
        let books = &mut *self.books.lock();
        books.tops[0].count(tag, 0, cost, now, String::new);
        if let Some(spent) = &mut books.spent {
            spent.add(books.rules.marks.of(0), 0, tag, cost);
        }
    }

    /// Whether a turn is held.
    pub fn holds(&self, id: TurnId) -> bool {
        self.engine.held.lock().turns.contains_key(&id)
    }

    /// Turns away programs that have waited for too long, and gives back turns that were held for
    /// too long. Call it a few times a second.
    pub fn expire(&self) {
        let now = self.engine.shards.clock.now();
        self.engine.gate.expire(now);
        self.engine.overdue(now).into_iter().for_each(|turn| self.end(turn, None));
    }

    /// Whether another instance gives out the turns, so that an answer takes a moment.
    pub fn asks_elsewhere(&self) -> bool {
        self.engine.gate.asks_elsewhere()
    }
}

/// The place of a program that waits for its turn. Dropping it leaves the queue.
pub struct WaitingTurn {
    lane: TurnLane,
    request: Option<RequestId>,
    hash: KeyHash,
}

impl Future for WaitingTurn {
    /// The turn, or the bound because of which the program gets none.
    type Output = Result<TurnId, RefusalCause>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(request) = self.request else { return Poll::Pending };
        let engine = &self.lane.engine;
        match engine.gate.poll(request, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(_)) => {
                let id = engine.hold(request, self.hash, engine.shards.clock.now());
                self.request = None;
                Poll::Ready(Ok(id))
            }
            Poll::Ready(Err(why)) => {
                self.request = None;
                Poll::Ready(Err(match why {
                    NoSlot::Refused(refused) => refused.cause,
                    // Only browsers are sent there.
                    NoSlot::WaitingRoom(_) => RefusalCause::WaitMax,
                }))
            }
        }
    }
}

impl Drop for WaitingTurn {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.lane.engine.gate.cancel(request, self.lane.engine.shards.clock.now());
        }
    }
}
