//! What an operator can see of a running Evenkeel: counters, the decision log, the busiest clients.
//!
//! [`Watch`] holds the handles of everything that is counted on the path of a request, and writes
//! the log line of each decision, limited to a few per second under a flood. It reads no clock: the
//! caller passes the time. [`metrics`] has the table of all metrics; [`prometheus`] and the admin
//! door show them.

pub mod config_loads;
pub mod counts;
pub mod decision;
pub mod failure;
pub mod log;
pub mod metrics;
pub mod otlp;
pub mod pressure;
pub mod printable;
pub mod prometheus;
pub mod registry;
pub mod sampler;
pub mod snapshot;
pub mod untrusted_proxy;

use config_loads::ConfigLoads;
use counts::gatekeeper::GatekeeperCounts;
use counts::heartbeats::Heartbeats;
use counts::master::MasterCounts;
use counts::models::ModelCounts;
use counts::peers::PeersStatusBoard;
use counts::store::StoreStatusSource;
use counts::tiers::{Tier, TierCounts};
use counts::{ConnectionRefusal, ProxyCounts};
use decision::Decision;
use decision::notice::BlockNotice;
use evenkeel_core::units::{Cost, Nanos, Time};
use failure::BackendFailure;
use metrics::{
    BLOCKS, BUILD, CHARGED, CLIENT_ADDRESSES, COST, DECISIONS, HEADER_FAULTS, LINES_LEFT_OUT,
    NEWCOMER_WAITS, QUEUE_REFUSALS, RELOADS, RULE_LOADS, STARTED,
};
use otlp::trace::Tracer;
use parking_lot::{Mutex, RwLock};
use registry::{Counter, Histogram, Registry, SERIES_MAX};
use sampler::{LineSampler, WarningThrottle};
use snapshot::RefusedConfig;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use untrusted_proxy::{ForwardingHeaders, PeerRequest, UntrustedProxyDetector, VotingPeriod};

/// Handles of everything that is counted on the path of a request, and the decision log.
#[derive(Debug)]
pub struct Watch {
    /// Requests that passed without any wait.
    pub allowed: Counter,
    /// Cost headers of the backend that Evenkeel did not believe.
    pub cost_header_faults: Counter,
    /// The counters and gauges of the proxy itself.
    pub proxy: ProxyCounts,
    /// The heartbeats of the serving threads.
    pub beats: Heartbeats,
    /// The status of the instances that count together.
    pub peers: PeersStatusBoard,
    /// The status of the store.
    pub store: StoreStatusSource,
    /// The counts of the master, if this process is one.
    pub master: OnceLock<Arc<MasterCounts>>,
    /// The counts of the gatekeepers that run in this process.
    pub gatekeepers: Mutex<Vec<Arc<GatekeeperCounts>>>,
    /// Waiting times and costs, separately for clients in credit and clients in debt.
    pub tiers: TierCounts,
    /// Tokens and money of requests to language models.
    pub models: ModelCounts,
    /// The time between the first request of visitors that had to wait and their turn.
    pub newcomer_waits: Histogram,
    /// Makes spans of requests; `None` if tracing is off.
    pub tracer: Option<Tracer>,
    /// When counting began, which is when the program started.
    pub started: Time,
    registry: Registry,
    cost: Histogram,
    charged: Counter,
    /// The reloads of the configuration.
    pub reloads: ConfigLoads,
    /// The loads of the rules of the rate limit service.
    pub rule_loads: Arc<ConfigLoads>,
    lines_left_out: Counter,
    blocks: Counter,
    decisions: RwLock<Vec<DecisionCounter>>,
    samplers: [(&'static str, LineSampler); SAMPLED_VERDICTS.len()],
    failures: LineSampler,
    full: WarningThrottle,
    unintroduced: WarningThrottle,
    front: Mutex<UntrustedProxyDetector>,
    /// Requests that the queue refused, by [`REFUSAL_CAUSES`].
    queue_refusals: [Counter; REFUSAL_CAUSES.len()],
    /// Requests by trust of their peer and whether a header names their client.
    client_addresses: [[Counter; 2]; 2],
    /// What has happened to the process itself.
    pub process: Mutex<ProcessNotes>,
    /// A wait in nanoseconds; see [`Watch::held_above`].
    held_above: AtomicU64,
}

/// Events of the process that `evenkeel doctor` asks for.
#[derive(Clone, Debug, Default)]
pub struct ProcessNotes {
    /// When the configuration in force was taken over; `None`: at the start.
    pub config_since: Option<Time>,
    /// Keys of the configuration on disk that take effect only after a restart.
    pub restart_keys: Vec<String>,
    /// The counts at that time.
    pub before: RequestCounts,
    /// Why the last successor of this process failed, and when.
    pub not_replaced: Option<(String, Time)>,
}

/// Requests since the start, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests of the proxy.
    pub all: u64,
    /// Those that the queue refused because they waited for too long.
    pub late: u64,
    /// Those that the queue refused because it was full.
    pub crowded: u64,
    /// By trust of their peer (trusted, other) and whether a header names their client (yes, no).
    pub client_addresses: [[u64; 2]; 2],
}

/// Why the queue refuses requests.
const REFUSAL_CAUSES: [&str; 3] = ["wait_max", "len_max", "waiting_page"];

/// The verdicts with a line sampler of their own; the last, empty one stands for all others.
const SAMPLED_VERDICTS: [&str; 7] = ["hold", "delay", "queue", "reject", "deny", "block", ""];

/// The counter of one verdict of one limit, cached so that the registry is not searched.
#[derive(Debug)]
struct DecisionCounter {
    verdict: &'static str,
    limit: Box<str>,
    shadow: bool,
    counter: Counter,
}

impl Watch {
    /// An empty `Watch` for a program that started at `now`.
    pub fn new(now: Time) -> Watch {
        let registry = Registry::default();
        registry.gauge(&BUILD, &[env!("CARGO_PKG_VERSION")]).set(1);
        registry.gauge(&STARTED, &[]).set(i64::try_from(now.second()).unwrap_or(i64::MAX));
        Watch {
            allowed: registry.counter(&DECISIONS, &["allow", "", "false"]),
            cost_header_faults: registry.counter(&HEADER_FAULTS, &[]),
            proxy: ProxyCounts::new(&registry, "proxy"),
            beats: Heartbeats::default(),
            peers: PeersStatusBoard::default(),
            store: StoreStatusSource::default(),
            master: OnceLock::new(),
            gatekeepers: Mutex::default(),
            tracer: None,
            cost: registry.histogram(&COST, &[]),
            charged: registry.nanos(&CHARGED, &[]),
            tiers: TierCounts::new(&registry),
            models: ModelCounts::new(&registry),
            newcomer_waits: registry.histogram(&NEWCOMER_WAITS, &[]),
            reloads: ConfigLoads::new(&registry, &RELOADS),
            rule_loads: Arc::new(ConfigLoads::new(&registry, &RULE_LOADS)),
            lines_left_out: registry.counter(&LINES_LEFT_OUT, &[]),
            blocks: registry.counter(&BLOCKS, &[]),
            decisions: RwLock::default(),
            samplers: SAMPLED_VERDICTS.map(|verdict| (verdict, LineSampler::default())),
            failures: LineSampler::default(),
            full: WarningThrottle::default(),
            unintroduced: WarningThrottle::default(),
            front: Mutex::default(),
            client_addresses: ["trusted", "other"].map(|peer| {
                ["yes", "no"].map(|has| registry.counter(&CLIENT_ADDRESSES, &[peer, has]))
            }),
            queue_refusals: REFUSAL_CAUSES.map(|cause| registry.counter(&QUEUE_REFUSALS, &[cause])),
            process: Mutex::default(),
            held_above: AtomicU64::default(),
            started: now,
            registry,
        }
    }

    /// Sets the average wait of its requests above which a client counts as held.
    pub fn set_held_above(&self, above: Nanos) {
        self.held_above.store(above.0, Relaxed);
    }

    /// The average wait of its requests above which a client counts as held.
    pub fn held_above(&self) -> Nanos {
        Nanos(self.held_above.load(Relaxed))
    }

    /// The registry of all series.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts and logs a request that was held, delayed or refused at `now`.
    pub fn record_decision(&self, decision: &Decision<'_>, now: Time) {
        self.count(decision);
        self.log_decision(decision, now);
    }

    /// Logs a decision made at `now` that is counted elsewhere. Returns false if the line was left
    /// out because this second already has too many.
    pub fn log_decision(&self, decision: &Decision<'_>, now: Time) -> bool {
        let advice = self.sampler(decision.verdict).ask(now);
        self.left_out(decision.verdict, advice.left_out);
        if advice.write {
            decision.log();
        }
        advice.write
    }

    /// Records `count` decisions at `now` that are counted elsewhere and get no line of their own.
    /// They add to the number of lines left out.
    pub fn skip_decisions(&self, verdict: &'static str, count: u64, now: Time) {
        let left_out = self.sampler(verdict).skip(count, now);
        self.left_out(verdict, left_out);
    }

    /// Counts and logs that a client was blocked at `now`.
    pub fn record_block(&self, notice: &BlockNotice<'_>, now: Time) {
        self.blocks.increment(1);
        let advice = self.sampler("block").ask(now);
        self.left_out("block", advice.left_out);
        if advice.write {
            notice.log();
        }
    }

    /// Counts and logs that the backend failed a request at `now`.
    pub fn failed(&self, failure: &BackendFailure<'_>, now: Time) {
        self.proxy.failed(failure.fault);
        let advice = self.failures.ask(now);
        self.failures_left_out(advice.left_out);
        if advice.write {
            failure.log();
        }
    }

    /// Warns, at most once a minute, that new clients wait because all `bound` connections are in
    /// use.
    pub fn warn_connections_full(&self, bound: usize, now: Time) {
        if self.full.ask(now) {
            tracing::warn!(
                target: "evenkeel::proxy",
                bound,
                "the limit of `bounds.connections` is reached: idle connections are closed to \
                 make room; if none is idle, new clients wait to be accepted"
            );
        }
    }

    /// Counts and logs a connection of the trusted proxy at `peer` that did not begin with the
    /// PROXY protocol.
    pub fn record_missing_preface(&self, peer: IpAddr, now: Time) {
        self.proxy.refused_connections(ConnectionRefusal::Preface).increment(1);
        if self.unintroduced.ask(now) {
            tracing::warn!(
                target: "evenkeel::proxy",
                %peer,
                "a connection of a trusted proxy was closed because it did not begin with the \
                 PROXY protocol: enable the protocol on that proxy, or change `client_address`"
            );
        }
    }

    /// Counts the charge of a request of `tier`. The request waited for `waited`, and the backend
    /// worked for it for `worked`.
    pub fn record_charge(&self, cost: Cost, waited: Nanos, worked: Nanos, tier: Tier) {
        self.cost.record(cost.0);
        self.charged.increment(cost.0);
        self.tiers.record(tier, waited, worked);
    }

    /// Counts a reload of the configuration, whose new state is in force at `now`, but for
    /// `restart_keys`.
    pub fn record_reload(&self, restart_keys: &[String], now: Time) {
        self.reloads.accept();
        // What was counted under other settings says nothing about these.
        self.front.lock().start_anew();
        let mut process = self.process.lock();
        process.config_since = Some(now);
        process.restart_keys = restart_keys.to_vec();
        process.before = self.request_counts();
    }

    /// The refusal of the configuration or of the rules, if there is one.
    pub fn refused_config(&self, now: Time) -> Option<RefusedConfig> {
        self.reloads.refused(now).or_else(|| self.rule_loads.refused(now))
    }

    /// Logs what is due: the number of lines left out, and an untrusted proxy in front. The caller
    /// calls this about once a second, so that these lines also appear when no more requests
    /// arrive.
    pub fn tick(&self, now: Time) {
        for (verdict, sampler) in &self.samplers {
            self.left_out(verdict, sampler.flush(now));
        }
        self.failures_left_out(self.failures.flush(now));
        let found = self.front.lock().tick(now);
        found.into_iter().for_each(tell_front);
    }

    /// Records what a request from `peer` says about the address of its client. Warns if most
    /// traffic comes from an untrusted peer that sends forwarded headers. Skips that check if
    /// another thread holds the lock.
    pub fn record_peer(&self, peer: IpAddr, request: PeerRequest, now: Time) {
        let (of, has, headers) = match request {
            PeerRequest::Trusted { has_address } => (0, has_address, ForwardingHeaders::default()),
            PeerRequest::Other(headers) => (1, !headers.is_empty(), headers),
        };
        self.client_addresses[of][usize::from(!has)].increment(1);
        let Some(mut front) = self.front.try_lock() else { return };
        let found = front.seen(peer, headers, now);
        drop(front);
        found.into_iter().for_each(tell_front);
    }

    /// Requests of the last minute by their peers, as far as they send forwarded headers without
    /// being trusted.
    pub fn untrusted_proxies(&self) -> VotingPeriod {
        self.front.lock().votes().clone()
    }

    /// The counts since the start.
    fn request_counts(&self) -> RequestCounts {
        let [late, crowded, _] = self.queue_refusals.each_ref().map(Counter::get);
        let client_addresses =
            self.client_addresses.each_ref().map(|of| of.each_ref().map(Counter::get));
        RequestCounts { all: self.proxy.requests.get(), late, crowded, client_addresses }
    }

    /// The counts since the configuration in force was taken over.
    pub fn request_counts_since_reload(&self) -> RequestCounts {
        let (now, before) = (self.request_counts(), self.process.lock().before);
        let since = |at: usize, has: usize| {
            let before = before.client_addresses[at][has];
            now.client_addresses[at][has].saturating_sub(before)
        };
        RequestCounts {
            all: now.all.saturating_sub(before.all),
            late: now.late.saturating_sub(before.late),
            crowded: now.crowded.saturating_sub(before.crowded),
            client_addresses: [[since(0, 0), since(0, 1)], [since(1, 0), since(1, 1)]],
        }
    }

    fn count(&self, decision: &Decision<'_>) {
        if let Some(refused) = decision.refused
            && let Some(at) = REFUSAL_CAUSES.iter().position(|cause| *cause == refused.cause)
        {
            self.queue_refusals[at].increment(1);
        }
        let is = |known: &&DecisionCounter| {
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
            known.push(DecisionCounter { verdict, limit, shadow: decision.shadow, counter });
        }
    }

    fn sampler(&self, verdict: &str) -> &LineSampler {
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
            "some failures of the backend were omitted from the log"
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
            "some decisions were omitted from the log"
        );
    }
}

fn tell_front(peer: IpAddr) {
    tracing::warn!(
        target: "evenkeel::proxy",
        %peer,
        "most requests come from one address that sends forwarding headers and is not trusted: \
         all its users share one bucket; if it is your proxy, add it to `trusted_proxies`"
    );
}
