//! What can be seen of a running Evenkeel: counters, the decision log, the busiest clients.
//!
//! [`Watch`] holds a handle of everything that is counted on the path of a request and writes the
//! line of each decision, thinned out under flood. It reads no clock: whoever decides says when.
//! The table of metrics: [`metrics`]; how they are shown: [`prometheus`] and the admin door.

pub mod counts;
pub mod decision;
pub mod failure;
pub mod front;
pub mod log;
pub mod metrics;
pub mod otlp;
pub mod printable;
pub mod prometheus;
pub mod registry;
pub mod sampler;
pub mod snapshot;

use counts::beats::Beats;
use counts::gatekeeper::GatekeeperCounts;
use counts::master::MasterCounts;
use counts::peers::Board;
use counts::store::StoreBoard;
use counts::tiers::{Tier, TierCounts};
use counts::{ProxyCounts, Turned};
use decision::Decision;
use decision::notice::Notice;
use evenkeel_core::units::{Cost, Nanos, Time};
use failure::Failure;
use front::Front;
use metrics::{
    BLOCKS, BUILD, CHARGED, COST, DECISIONS, HEADER_FAULTS, LINES_LEFT_OUT, RELOADS, STARTED,
};
use otlp::trace::Tracer;
use parking_lot::{Mutex, RwLock};
use registry::{Counter, Histogram, Registry, SERIES_MAX};
use sampler::{Sampler, Seldom};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Handles of everything that is counted on the path of a request, and the decision log.
#[derive(Debug)]
pub struct Watch {
    /// Requests that passed at once.
    pub allowed: Counter,
    /// Cost headers that could not be believed.
    pub cost_header_faults: Counter,
    /// What the proxy counts itself.
    pub proxy: ProxyCounts,
    /// Whether the threads that serve go round.
    pub beats: Beats,
    /// How the instances stand that count together.
    pub peers: Board,
    /// How the store stands.
    pub store: StoreBoard,
    /// How a master stands, where this is one.
    pub master: OnceLock<Arc<MasterCounts>>,
    /// How the gatekeepers stand that there are here.
    pub gatekeepers: Mutex<Vec<Arc<GatekeeperCounts>>>,
    /// How those in credit fare beside those in debt.
    pub tiers: TierCounts,
    /// Makes spans of requests, if anybody wants them.
    pub tracer: Option<Tracer>,
    started: Time,
    registry: Registry,
    cost: Histogram,
    charged: Counter,
    reloads: [Counter; 2],
    lines_left_out: Counter,
    blocks: Counter,
    decisions: RwLock<Vec<Decided>>,
    samplers: [(&'static str, Sampler); 6],
    failures: Sampler,
    full: Seldom,
    unintroduced: Seldom,
    front: Mutex<Front>,
    /// In nanoseconds.
    held_above: AtomicU64,
}

/// What lines are thinned out by; the last is for any other.
const VERDICTS: [&str; 6] = ["hold", "delay", "queue", "reject", "block", ""];

/// The counter of one verdict of one limit.
#[derive(Debug)]
struct Decided {
    verdict: &'static str,
    limit: Box<str>,
    shadow: bool,
    counter: Counter,
}

impl Watch {
    /// A watch that has seen nothing yet, of a program that started at `now`.
    #[must_use]
    pub fn new(now: Time) -> Watch {
        let registry = Registry::default();
        registry.gauge(&BUILD, &[env!("CARGO_PKG_VERSION")]).set(1);
        registry.gauge(&STARTED, &[]).set(i64::try_from(now.second()).unwrap_or(i64::MAX));
        Watch {
            allowed: registry.counter(&DECISIONS, &["allow", "", "false"]),
            cost_header_faults: registry.counter(&HEADER_FAULTS, &[]),
            proxy: ProxyCounts::new(&registry, "proxy"),
            beats: Beats::default(),
            peers: Board::default(),
            store: StoreBoard::default(),
            master: OnceLock::new(),
            gatekeepers: Mutex::default(),
            tracer: None,
            cost: registry.histogram(&COST, &[]),
            charged: registry.nanos(&CHARGED, &[]),
            tiers: TierCounts::new(&registry),
            reloads: ["ok", "failed"].map(|result| registry.counter(&RELOADS, &[result])),
            lines_left_out: registry.counter(&LINES_LEFT_OUT, &[]),
            blocks: registry.counter(&BLOCKS, &[]),
            decisions: RwLock::default(),
            samplers: VERDICTS.map(|verdict| (verdict, Sampler::default())),
            failures: Sampler::default(),
            full: Seldom::default(),
            unintroduced: Seldom::default(),
            front: Mutex::default(),
            held_above: AtomicU64::default(),
            started: now,
            registry,
        }
    }

    /// Clients whose requests wait for longer on average count as held.
    pub fn count_as_held(&self, above: Nanos) {
        self.held_above.store(above.0, Relaxed);
    }

    /// From which wait on clients count as held.
    #[must_use]
    pub fn held_above(&self) -> Nanos {
        Nanos(self.held_above.load(Relaxed))
    }

    /// When it began to count.
    #[must_use]
    pub fn started(&self) -> Time {
        self.started
    }

    /// Everything that has been counted.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A request was held, delayed or refused, at `now`.
    pub fn decided(&self, decision: &Decision<'_>, now: Time) {
        self.count(decision);
        self.tell(decision, now);
    }

    /// Writes the line of a decision that is counted elsewhere, at `now`; false: there have been
    /// too many in this second.
    pub fn tell(&self, decision: &Decision<'_>, now: Time) -> bool {
        let advice = self.sampler(decision.verdict).ask(now);
        self.left_out(decision.verdict, advice.left_out);
        if advice.write {
            decision.log();
        }
        advice.write
    }

    /// So many decisions were counted elsewhere at `now`, and are not to be told.
    pub fn untold(&self, verdict: &'static str, count: u64, now: Time) {
        let left_out = self.sampler(verdict).skip(count, now);
        self.left_out(verdict, left_out);
    }

    /// A client was blocked, at `now`.
    pub fn blocked(&self, notice: &Notice<'_>, now: Time) {
        self.blocks.increment(1);
        let advice = self.sampler("block").ask(now);
        self.left_out("block", advice.left_out);
        if advice.write {
            notice.log();
        }
    }

    /// The backend failed a request, at `now`.
    pub fn failed(&self, failure: &Failure<'_>, now: Time) {
        self.proxy.failed(failure.fault);
        let advice = self.failures.ask(now);
        self.failures_left_out(advice.left_out);
        if advice.write {
            failure.log();
        }
    }

    /// A client has to wait for room, at `now`, because `bound` connections are open.
    pub fn full(&self, bound: usize, now: Time) {
        if self.full.ask(now) {
            tracing::warn!(
                target: "evenkeel::proxy",
                bound,
                "as many client connections are open as `bounds.connections` allows: idle ones \
                 are closed to make room, and without any, clients wait to be accepted"
            );
        }
    }

    /// The trusted proxy at `peer` did not begin with the PROXY protocol, at `now`.
    pub fn unintroduced(&self, peer: IpAddr, now: Time) {
        self.proxy.turned(Turned::Preface).increment(1);
        if self.unintroduced.ask(now) {
            tracing::warn!(
                target: "evenkeel::proxy",
                %peer,
                "a connection of a trusted proxy is closed, as it did not begin with the PROXY \
                 protocol: switch it on there, or write another `client_address`"
            );
        }
    }

    /// A request of `tier` was charged, after it had waited for `waited` and the backend had
    /// worked for it for `worked`.
    pub fn charged(&self, cost: Cost, waited: Nanos, worked: Nanos, tier: Tier) {
        self.cost.record(cost.0);
        self.charged.increment(cost.0);
        self.tiers.record(tier, waited, worked);
    }

    /// The configuration was read again, and runs, or could not be used.
    pub fn reloaded(&self, ok: bool) {
        self.reloads[usize::from(!ok)].increment(1);
    }

    /// Tells what is still to be told: how many lines were left out, and who stands in front. To
    /// be called about once a second, so that it is told also when nothing comes any more.
    pub fn tick(&self, now: Time) {
        for (verdict, sampler) in &self.samplers {
            self.left_out(verdict, sampler.flush(now));
        }
        self.failures_left_out(self.failures.flush(now));
        let found = self.front.lock().tick(now);
        found.into_iter().for_each(tell_front);
    }

    /// A request came from `peer`, which is not trusted; `forwards`: it sent forwarded headers all
    /// the same. Warns if most traffic does so. Skips the look when another thread is at it.
    pub fn seen(&self, peer: IpAddr, forwards: bool, now: Time) {
        let Some(mut front) = self.front.try_lock() else { return };
        let found = front.seen(peer, forwards, now);
        drop(front);
        found.into_iter().for_each(tell_front);
    }

    fn count(&self, decision: &Decision<'_>) {
        let is = |known: &&Decided| {
            known.verdict == decision.verdict
                && known.shadow == decision.shadow
                && *known.limit == *decision.limit
        };
        let known = self.decisions.read();
        if let Some(found) = known.iter().find(is) {
            return found.counter.increment(1);
        }
        drop(known);
        let shadow = if decision.shadow { "true" } else { "false" };
        let labels = [decision.verdict, decision.limit, shadow];
        let counter = self.registry.counter(&DECISIONS, &labels);
        counter.increment(1);
        let mut known = self.decisions.write();
        if known.len() < SERIES_MAX && !known.iter().any(|known| is(&known)) {
            let (verdict, limit) = (decision.verdict, decision.limit.into());
            known.push(Decided { verdict, limit, shadow: decision.shadow, counter });
        }
    }

    fn sampler(&self, verdict: &str) -> &Sampler {
        let [named @ .., (_, other)] = &self.samplers;
        named.iter().find(|(name, _)| *name == verdict).map_or(other, |(_, sampler)| sampler)
    }

    fn failures_left_out(&self, count: u64) {
        if count == 0 {
            return;
        }
        self.lines_left_out.increment(count);
        tracing::warn!(
            target: "evenkeel::backend",
            left_out = count,
            "more failures of the backend than are logged"
        );
    }

    fn left_out(&self, verdict: &str, count: u64) {
        if count == 0 {
            return;
        }
        self.lines_left_out.increment(count);
        tracing::info!(
            target: "evenkeel::decision",
            verdict,
            left_out = count,
            "more decisions than are logged"
        );
    }
}

fn tell_front(peer: IpAddr) {
    tracing::warn!(
        target: "evenkeel::proxy",
        %peer,
        "most requests come from one address that sends forwarded headers and is not trusted: \
         all its users share one bucket; if it is your proxy, name it in `trusted_proxies`"
    );
}
