//! The engine of a gatekeeper: it enforces the orders of a master for one domain.
//!
//! A gatekeeper decides on a request by the orders that it has received so far, from memory, and
//! reports the request to the master afterwards. The request does not wait for the master. A
//! request without an order passes. The table of orders and the decision:
//! `evenkeel_core::limiter::orders`. Reports wait in `outbox`. The connections and the delay of
//! requests are up to the doors.

use super::outbox::{ReportOutbox, ReportedStatus, RequestReport};
use crate::view::{EngineView, HeavyClient, count_held, with_levels};
use aws_lc_rs::digest::{SHA256, digest};
use evenkeel_config::settings;
use evenkeel_core::classify::{self, RequestAttributes, readable};
use evenkeel_core::condition::Condition;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::KeyPart;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::limiter::orders::{GatekeeperOrders, OrderVerdict};
use evenkeel_core::top::TopClients;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::gatekeeper::{GatekeeperCounts, GatekeeperVerdict};
use evenkeel_telemetry::decision::Decision;
use evenkeel_telemetry::registry::GaugeGuard;
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The longest identifier, in bytes. The rest of a longer one is ignored, here and at the master.
pub const IDENTIFIER_BYTES_MAX: usize = 65_536;
/// An order that lasts longer than this is a mistake: no rule of a master delays requests for that
/// long.
const AHEAD_MAX: Nanos = Nanos::from_secs(400 * 86_400);
/// The longest text for the master's log, in bytes. The rest of a longer one is not sent.
const LOG_INFO_BYTES_MAX: usize = 1_024;
/// The number of delayed or refused identifiers that are remembered by name.
const TOP_KEYS: usize = 1_000;
/// The length of the digest that replaces a secret, in bytes.
const VEIL_BYTES: usize = 16;

/// A gatekeeper, shared by the doors that ask it. Its locks (`top`, the outbox) are taken one at a
/// time.
pub struct GatekeeperEngine {
    /// The reports for the master.
    pub outbox: ReportOutbox,
    /// The gatekeeper's metrics.
    pub counts: Arc<GatekeeperCounts>,
    /// The name of its domain.
    pub domain: String,
    when: Condition,
    by: Vec<KeyPart>,
    log_info: Vec<KeyPart>,
    orders: GatekeeperOrders,
    held: AtomicUsize,
    held_max: usize,
    /// One in this number of refused requests is reported to the master; 0 for none.
    rejected_one_in: u64,
    rejected: AtomicU64,
    top: Mutex<TopClients>,
    clock: Clock,
    watch: Arc<Watch>,
}

/// A request that is decided on, but neither counted nor reported yet.
pub struct OrderCheck {
    keeper: Arc<GatekeeperEngine>,
    identifier: Box<[u8]>,
    hash: KeyHash,
    came: Time,
    log_info: Box<[u8]>,
    word: OrderVerdict,
    /// The outcome. In shadow no request is delayed. A request that would be delayed is refused if
    /// too many are delayed already.
    passed: GatekeeperVerdict,
    place: Option<DelayPlace>,
    shadow: bool,
}

/// A request that may run, at once or after a delay.
pub struct OrderGuard {
    /// The time until which the request is delayed, if it is.
    pub until: Option<Time>,
    /// Whether the request was counted as delayed or refused, even if that was not enforced.
    pub held_up: bool,
    place: Option<DelayPlace>,
}

/// A place among the delayed requests. Dropping it frees the place.
struct DelayPlace {
    keeper: Arc<GatekeeperEngine>,
    _counted: GaugeGuard,
}

impl Drop for DelayPlace {
    fn drop(&mut self) {
        self.keeper.held.fetch_sub(1, Relaxed);
    }
}

impl GatekeeperEngine {
    /// Makes a gatekeeper without orders.
    pub fn new(
        settings: &settings::GatekeeperSettings,
        seed: KeySeed,
        clock: Clock,
        watch: &Arc<Watch>,
    ) -> Arc<GatekeeperEngine> {
        let (name, by) = (settings.domain.as_str().into(), settings.identifier.clone());
        let at = [settings.master.to_string(), settings.control.to_string()];
        let counts = Arc::new(GatekeeperCounts::new(watch.registry(), &settings.domain, at));
        watch.gatekeepers.lock().push(Arc::clone(&counts));
        Arc::new(GatekeeperEngine {
            outbox: ReportOutbox::default(),
            counts,
            domain: settings.domain.clone(),
            when: settings.when.clone(),
            by: by.clone(),
            log_info: settings.log_info.clone(),
            orders: GatekeeperOrders::new(name, by, settings.keys_max, settings.max_delay, seed),
            held: AtomicUsize::new(0),
            held_max: settings.held_max,
            rejected_one_in: settings.rejected_one_in,
            rejected: AtomicU64::new(0),
            top: Mutex::new(TopClients::new(TOP_KEYS)),
            clock,
            watch: Arc::clone(watch),
        })
    }

    /// Whether the gatekeeper's condition matches a request. The first gatekeeper that matches
    /// decides.
    pub fn applies_to(&self, request: &impl RequestAttributes) -> bool {
        classify::applies(&self.when, request)
    }

    /// The identifier by which the master counts a request.
    pub fn identifier(&self, request: &impl RequestAttributes) -> Vec<u8> {
        classify::identifier(&self.by, request, veil)
    }

    /// The text about a request for the master's log: its parts, separated by spaces.
    pub fn log_info(&self, request: &impl RequestAttributes) -> Vec<u8> {
        let mut text = classify::identifier(&self.log_info, request, veil);
        text.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
        text
    }

    /// Takes over an order of the master: `identifier` must wait until `until`. Returns false, and
    /// ignores the order, if it is too far ahead to be meant.
    pub fn learn(&self, identifier: &[u8], until: Time, now: Time) -> bool {
        if until.since(now) > AHEAD_MAX {
            return false;
        }
        let hash = self.orders.hash(cut(identifier));
        self.orders.learn(hash, until, now);
        if let Some(mut top) = self.top.try_lock().filter(|_| until > now) {
            top.touch(hash, now, || shown(identifier));
        }
        true
    }

    /// Decides on a request of `identifier`, and takes a place for it if it must wait. In shadow
    /// the request passes whatever the decision is.
    pub fn judge(self: &Arc<Self>, mut identifier: Vec<u8>, shadow: bool, now: Time) -> OrderCheck {
        identifier.truncate(IDENTIFIER_BYTES_MAX);
        let hash = self.orders.hash(&identifier);
        let word = self.orders.decide(hash, now);
        let mut place = None;
        let passed = match word {
            OrderVerdict::Accepted => GatekeeperVerdict::Accepted,
            OrderVerdict::Rejected(_) => GatekeeperVerdict::Rejected,
            OrderVerdict::Delayed(_) if shadow => GatekeeperVerdict::Delayed,
            OrderVerdict::Delayed(_) => {
                place = self.place();
                if place.is_some() {
                    GatekeeperVerdict::Delayed
                } else {
                    GatekeeperVerdict::Crowded
                }
            }
        };
        let keeper = Arc::clone(self);
        OrderCheck {
            keeper,
            identifier: identifier.into(),
            hash,
            came: now,
            log_info: Box::default(),
            word,
            passed,
            place,
            shadow,
        }
    }

    fn place(self: &Arc<Self>) -> Option<DelayPlace> {
        let one_more = |held| (held < self.held_max).then_some(held + 1);
        self.held.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(DelayPlace { keeper: Arc::clone(self), _counted: self.counts.held.hold() })
    }

    /// Updates the metric of identifiers that must wait. Call it about once a second.
    pub fn tick(&self) {
        let waiting = self.orders.in_force(self.clock.now());
        self.counts.identifiers.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Whether this refused request is one that is reported. Each call counts one.
    fn samples(&self) -> bool {
        let one_in = self.rejected_one_in;
        one_in > 0 && self.rejected.fetch_add(1, Relaxed).is_multiple_of(one_in)
    }
}

impl OrderCheck {
    /// Adds a text for the master's log.
    #[must_use]
    pub fn noting(mut self, mut log_info: Vec<u8>) -> OrderCheck {
        log_info.truncate(LOG_INFO_BYTES_MAX);
        self.log_info = log_info.into();
        self
    }

    /// If the request is refused: how long the client must wait before it tries again.
    pub fn refused(&self) -> Option<Nanos> {
        let refused =
            matches!(self.passed, GatekeeperVerdict::Rejected | GatekeeperVerdict::Crowded)
                && !self.shadow;
        refused.then(|| self.wait())
    }

    fn wait(&self) -> Nanos {
        match self.word {
            OrderVerdict::Accepted => Nanos::ZERO,
            OrderVerdict::Delayed(until) | OrderVerdict::Rejected(until) => until.since(self.came),
        }
    }

    /// Lets the request pass: counts it and reports it to the master.
    #[must_use]
    pub fn pass(mut self, client: Option<IpAddr>) -> OrderGuard {
        self.report(client);
        let until = match self.word {
            OrderVerdict::Delayed(until) if !self.shadow => Some(until),
            _ => None,
        };
        let place = self.place.take();
        let held_up = self.passed != GatekeeperVerdict::Accepted;
        self.tell(until.map_or(ReportedStatus::Accepted, ReportedStatus::Delayed));
        OrderGuard { until, held_up, place }
    }

    /// Refuses the request: counts it, and reports it to the master if it is one of the sample.
    pub fn refuse(self, client: Option<IpAddr>) {
        self.report(client);
        if self.keeper.samples() {
            self.tell(ReportedStatus::Rejected);
        }
    }

    fn tell(self, status: ReportedStatus) {
        let OrderCheck { keeper, identifier, came, log_info, .. } = self;
        keeper.outbox.push(RequestReport { status, identifier, came, log_info }, &keeper.counts);
    }

    /// Counts the outcome of the request. If it was delayed or refused, also logs it and enters it
    /// into the list of the heaviest.
    fn report(&self, client: Option<IpAddr>) {
        let keeper = &self.keeper;
        keeper.counts.record_verdict(self.passed);
        let verdict = match self.passed {
            GatekeeperVerdict::Accepted => return,
            GatekeeperVerdict::Delayed => "delay",
            GatekeeperVerdict::Rejected | GatekeeperVerdict::Crowded => "reject",
        };
        let (name, wait) = (shown(&self.identifier), self.wait());
        let decision = Decision {
            verdict,
            limit: &keeper.domain,
            key: &name,
            client,
            level: None,
            wait,
            cost: None,
            refused: None,
            denied: None,
            shadow: self.shadow,
        };
        keeper.watch.record_decision(&decision, self.came);
        if let Some(mut top) = keeper.top.try_lock() {
            top.touch(self.hash, self.came, || name);
            top.add(self.hash, Cost::hits(1), wait, self.came);
        }
    }
}

impl OrderGuard {
    /// Ends the delay and frees its place.
    pub fn end_delay(&mut self) {
        self.place = None;
    }
}

fn cut(identifier: &[u8]) -> &[u8] {
    &identifier[..identifier.len().min(IDENTIFIER_BYTES_MAX)]
}

/// An identifier for display: its parts, separated by spaces.
fn shown(identifier: &[u8]) -> String {
    let bytes = &identifier[..identifier.len().min(256)];
    let spaced: Vec<u8> = bytes.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
    readable(&spaced)
}

/// The text that replaces a secret where others can read it. The same secret gives the same text.
fn veil(name: &str, secret: &[u8]) -> String {
    let mut text = format!("{name}#");
    for byte in &digest(&SHA256, secret).as_ref()[..VEIL_BYTES] {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl EngineView for GatekeeperEngine {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(self.orders.limiter())
    }

    fn top(&self, _: usize) -> Vec<HeavyClient> {
        let now = self.clock.now();
        let rows = self.top.lock().rows(now);
        with_levels(self.orders.limiter(), 0, rows, now)
    }

    fn clients_held(&self, _: usize, above: Nanos) -> Option<usize> {
        let now = self.clock.now();
        Some(count_held(&self.top.lock().rows(now), above, now))
    }
}

#[cfg(test)]
mod tests;
