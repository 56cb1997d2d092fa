//! One request of the rate limit service, from its descriptors to the answer.
//!
//! The rules say which limits apply (`rules`), and the core counts all of them in one step
//! (`evenkeel_core::windows`). This module combines both into the answer: shadow mode, quotas,
//! replacements, headers, metadata, and the metrics that the reference server keeps. It reads and
//! writes no bytes (see `grpc` and `json`), and only `asked` waits for anything.

mod answer;
mod asked;
mod meet;
pub mod used;

use super::rules::Rules;
use super::tally::Tallies;
use super::wire::Response;
use super::wire::view::{DESCRIPTORS_MAX, ENTRIES_MAX, Part, View};
use answer::Answer;
use arc_swap::{ArcSwap, ArcSwapOption};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_core::key::Seed;
use evenkeel_core::units::Time;
use evenkeel_core::windows::Hit;
use evenkeel_engine::windows::Counters;
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::{Naming, Store, Unanswered};
use evenkeel_telemetry::metrics::REQUESTS;
use evenkeel_telemetry::registry::{Counter, Histogram, Registry};
use meet::Met;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The reason why a request gets no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request names no domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// The request has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// No rules have been loaded since the start.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The store did not answer, and the settings say that this is reported as an error.
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    /// More than `DESCRIPTORS_MAX` descriptors, or more than `ENTRIES_MAX` entries in one of them.
    #[error("more than {DESCRIPTORS_MAX} descriptors, or more than {ENTRIES_MAX} entries in one")]
    TooMany,
}

/// The protobuf package that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// `envoy.service.ratelimit.v3`.
    V3,
    /// `envoy.service.ratelimit.v2` and lyft's first package, which have fewer fields.
    Old,
}

/// Counters of the service as a whole, beside the metrics of each rule.
#[derive(Debug, Default)]
pub struct Events {
    /// Requests received, with or without a decision.
    pub requests: Counter,
    /// Requests that got no decision.
    pub errors: AtomicU64,
    /// Requests that got no decision because the store did not answer.
    pub store_errors: AtomicU64,
    /// Requests that were over a limit and passed because of the global shadow mode.
    pub global_shadow_mode: AtomicU64,
    /// Sets of rules that were put in force.
    pub loads: AtomicU64,
    /// Sets of rules that were refused.
    pub load_errors: AtomicU64,
    /// Durations of gRPC calls in nanoseconds. `None` if no output shows them; then the clock is
    /// not read for them.
    pub response_time: Option<Histogram>,
}

impl Events {
    /// Registers in `registry` the counters that other outputs show too; the rest are kept here
    /// only.
    #[must_use]
    pub fn of(registry: &Registry) -> Events {
        Events { requests: registry.counter(&REQUESTS, &["ratelimit"]), ..Events::default() }
    }
}

/// The service itself, shared by all threads and ports.
pub struct Decider {
    /// The rules in force. `None` until rules have been read for the first time.
    pub rules: ArcSwapOption<Rules>,
    /// The metrics of each rule and path.
    pub tallies: Tallies,
    /// Requests for domains without rules, by domain.
    pub unknown_domains: Tallies,
    /// Metrics of the service as a whole.
    pub events: Events,
    /// The settings for answers, which a reload replaces.
    pub settings: ArcSwap<RatelimitAnswers>,
    /// The counters of all limits, in memory.
    pub counters: Arc<Counters>,
    pub(super) clock: Clock,
    /// How far the system's clock was moved since the start, in nanoseconds. Windows follow the
    /// system's clock.
    step: AtomicI64,
    seed: Seed,
    /// The store that also counts the hits, if there is one.
    store: Option<Arc<Store>>,
    /// How counters are named in the store; `None` without a store.
    naming: Option<Naming>,
    /// The longest time that compatible keys are kept after their window has ended.
    jitter: Duration,
}

/// Buffers that each thread keeps, so that a request need not allocate them.
#[derive(Default)]
pub struct Room {
    hits: Vec<Hit>,
    sets: Vec<usize>,
}

impl Decider {
    /// A service without rules that counts in `counters` and hashes keys with `seed`.
    #[must_use]
    pub fn new(
        settings: RatelimitAnswers,
        counters: Arc<Counters>,
        seed: Seed,
        clock: Clock,
    ) -> Decider {
        Decider {
            rules: ArcSwapOption::empty(),
            tallies: Tallies::default(),
            unknown_domains: Tallies::default(),
            events: Events::default(),
            settings: ArcSwap::from_pointee(settings),
            counters,
            clock,
            step: AtomicI64::new(0),
            seed,
            store: None,
            naming: None,
            jitter: Duration::ZERO,
        }
    }

    /// Also counts in `store`, over the lane that each caller passes to [`Decider::ask`].
    #[must_use]
    pub fn with_store(self, store: Option<Arc<Store>>) -> Decider {
        let jitter = store.as_ref().map_or(Duration::ZERO, |store| store.jitter());
        Decider { naming: store.as_ref().map(|store| store.naming()), store, jitter, ..self }
    }

    /// Follows the system's clock if it was moved by more than a second. To be called once a
    /// second.
    pub fn follow_clock(&self) {
        let step = self.clock.step();
        if (step - self.step.load(Relaxed)).unsigned_abs() > evenkeel_core::units::SECOND {
            self.step.store(step, Relaxed);
        }
    }

    /// The present by the monotonic clock, for measuring durations.
    #[must_use]
    pub fn steady_now(&self) -> Time {
        self.clock.now()
    }

    /// The present by the system's clock, which windows follow.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.clock.now().0.saturating_add_signed(self.step.load(Relaxed)))
    }

    /// Decides a request and counts it.
    ///
    /// # Errors
    /// [`Refusal`]; no hit was counted then.
    pub fn decide(
        &self,
        request: &View<'_>,
        package: Package,
        room: &mut Room,
    ) -> Result<Response, Refusal> {
        self.decide_at(request, package, room, self.now())
    }

    /// Decides a request and counts it at the time `now`.
    pub fn decide_at(
        &self,
        request: &View<'_>,
        package: Package,
        room: &mut Room,
        now: Time,
    ) -> Result<Response, Refusal> {
        let rules = self.rules.load();
        let mut met = self.met_by(rules.as_deref(), request, package, now)?;
        let settings = self.settings.load();
        room.hits.clear();
        for met in &mut met {
            if let Met::Limited(limited) = met {
                limited.place = room.hits.len();
                room.hits.push(limited.hit);
            }
        }
        self.counters.count(&mut room.hits, &mut room.sets, settings.policy, now);
        for met in &mut met {
            if let Met::Limited(limited) = met {
                limited.hit = room.hits[limited.place];
            }
        }
        Ok(self.conclude(&met, request, package, &settings, now))
    }

    /// Checks a request and finds what applies to each of its descriptors, in order.
    fn met_by<'r>(
        &self,
        rules: Option<&'r Rules>,
        request: &View<'_>,
        package: Package,
        now: Time,
    ) -> Result<Vec<Met<'r>>, Refusal> {
        self.events.requests.increment(1);
        let checked = check(request, rules, package);
        let rules = checked.inspect_err(|refusal| {
            self.events.errors.fetch_add(1, Relaxed);
            tracing::debug!(
                target: "evenkeel::ratelimit", request = %Shown(request), %refusal, "not answered"
            );
        })?;
        let mut met = self.meet(rules, request, now);
        meet::replace(&mut met);
        Ok(met)
    }

    /// Makes the answer after all hits have been counted, and updates the metrics.
    fn conclude(
        &self,
        met: &[Met<'_>],
        request: &View<'_>,
        package: Package,
        settings: &RatelimitAnswers,
        now: Time,
    ) -> Response {
        let mut look = self.counters.look();
        for (met, part) in met.iter().zip(&request.descriptors) {
            if let Met::Limited(limited) = met {
                limited.count(settings.near_limit_ratio);
                if let Some(look) = &mut look {
                    limited.show(look, request.domain, part.entries.as_slice());
                }
            }
        }
        drop(look);
        let (response, shadowed) = Answer { settings, request, met, now }.response(package);
        if shadowed {
            self.events.global_shadow_mode.fetch_add(1, Relaxed);
        }
        tracing::debug!(
            target: "evenkeel::ratelimit", request = %Shown(request),
            code = response.overall_code().as_str_name(), "answered"
        );
        response
    }
}

/// The maximum number of descriptors of one request in a log line.
const SHOWN_MAX: usize = 10;
/// The maximum number of characters of each text in a log line.
const SHOWN_CHARS_MAX: usize = 100;

/// A request in its log form: `DOMAIN: (KEY=VALUE),(KEY=VALUE) | (KEY=VALUE)`.
struct Shown<'a>(&'a View<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |text: &'_ str| text.escape_debug().take(SHOWN_CHARS_MAX).collect::<String>();
        let View { domain, descriptors, .. } = self.0;
        write!(f, "{}:", short(domain))?;
        for (index, part) in descriptors.iter().take(SHOWN_MAX).enumerate() {
            f.write_str(if index > 0 { " | " } else { " " })?;
            for (index, (key, value)) in part.entries.as_slice().iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                write!(f, "{comma}({}={})", short(key), short(value))?;
            }
        }
        match descriptors.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Returns the rules if the request can be decided. For the old packages, the only ones that
/// Fencer's clients use, missing rules are reported before any error in the request.
fn check<'r>(
    request: &View<'_>,
    rules: Option<&'r Rules>,
    package: Package,
) -> Result<&'r Rules, Refusal> {
    let long = |part: &Part<'_>| part.entries.as_slice().len() > ENTRIES_MAX;
    match rules {
        None if package == Package::Old => Err(Refusal::NoRules),
        _ if request.domain.is_empty() => Err(Refusal::NoDomain),
        _ if request.descriptors.is_empty() => Err(Refusal::NoDescriptors),
        _ if request.descriptors.len() > DESCRIPTORS_MAX => Err(Refusal::TooMany),
        _ if request.descriptors.iter().any(long) => Err(Refusal::TooMany),
        None => Err(Refusal::NoRules),
        Some(rules) => Ok(rules),
    }
}
