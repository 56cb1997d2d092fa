//! One request of the rate limit service, from its descriptors to the answer.
//!
//! The rules say which limits apply (`rules`), and the core counts all of them in one step
//! (`evenkeel_core::windows`). This module combines both into the answer: shadow mode, quotas,
//! replacements, headers, metadata, and the metrics that the reference server keeps. It reads and
//! writes no bytes (see `grpc` and `json`), and only `stored` waits for anything.

mod answer;
mod matching;
mod stored;
pub mod usage;

use super::rules::RatelimitRules;
use super::tally::RuleTallies;
use super::wire::view::{DESCRIPTORS_MAX, ENTRIES_MAX, RequestView};
use super::wire::{ProtoPackage, Response};
use arc_swap::{ArcSwap, ArcSwapOption};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::Time;
use evenkeel_core::windows::Hit;
use evenkeel_engine::windows::Counters;
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::{RedisStore, StoreUnansweredError};
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::config_loads::ConfigLoads;
use evenkeel_telemetry::metrics::REQUESTS;
use evenkeel_telemetry::registry::{Counter, Histogram};
use matching::DescriptorMatch;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The reason why a request gets no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
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
    Unanswered(#[from] StoreUnansweredError),
    /// More than `DESCRIPTORS_MAX` descriptors, or more than `ENTRIES_MAX` entries in one of them.
    #[error("more than {DESCRIPTORS_MAX} descriptors, or more than {ENTRIES_MAX} entries in one")]
    TooMany,
}

/// Counters of the service as a whole, beside the metrics of each rule.
#[derive(Debug, Default)]
pub struct ServiceCounters {
    /// Requests received, with or without a decision.
    pub requests: Counter,
    /// Requests that got no decision.
    pub errors: AtomicU64,
    /// Requests that got no decision because the store did not answer.
    pub store_errors: AtomicU64,
    /// Requests that were over a limit and passed because of the global shadow mode.
    pub global_shadow_mode: AtomicU64,
    /// Successful and refused loads of rules.
    pub rule_loads: Arc<ConfigLoads>,
    /// Durations of gRPC calls in nanoseconds. `None` if no output shows them; then the clock is
    /// not read for them.
    pub response_time: Option<Histogram>,
}

impl ServiceCounters {
    /// Uses the counters of `watch` where other outputs show them too.
    #[must_use]
    pub fn of(watch: &Watch) -> ServiceCounters {
        ServiceCounters {
            requests: watch.registry().counter(&REQUESTS, &["ratelimit"]),
            rule_loads: Arc::clone(&watch.rule_loads),
            ..ServiceCounters::default()
        }
    }
}

/// The service itself, shared by all threads and ports.
pub struct RatelimitDecider {
    /// The rules in force. `None` until rules have been read for the first time.
    pub rules: ArcSwapOption<RatelimitRules>,
    /// The metrics of each rule and path.
    pub tallies: RuleTallies,
    /// Requests for domains without rules, by domain.
    pub unknown_domains: RuleTallies,
    /// Metrics of the service as a whole.
    pub events: ServiceCounters,
    /// The settings for answers, which a reload replaces.
    pub settings: ArcSwap<RatelimitAnswers>,
    /// The counters of all limits, in memory.
    pub counters: Arc<Counters>,
    pub(super) clock: Clock,
    /// How far the system's clock was moved since the start, in nanoseconds. Windows follow the
    /// system's clock.
    step: AtomicI64,
    seed: KeySeed,
    /// The store that also counts the hits, if there is one.
    store: Option<Arc<RedisStore>>,
}

/// Buffers that each thread keeps, so that a request need not allocate them.
#[derive(Default)]
pub struct DecisionBuffers {
    hits: Vec<Hit>,
    sets: Vec<usize>,
}

impl RatelimitDecider {
    /// A service without rules that counts in `counters` and hashes keys with `seed`.
    #[must_use]
    pub fn new(
        settings: RatelimitAnswers,
        counters: Arc<Counters>,
        seed: KeySeed,
        clock: Clock,
    ) -> RatelimitDecider {
        RatelimitDecider {
            rules: ArcSwapOption::empty(),
            tallies: RuleTallies::default(),
            unknown_domains: RuleTallies::default(),
            events: ServiceCounters::default(),
            settings: ArcSwap::from_pointee(settings),
            counters,
            clock,
            step: AtomicI64::new(0),
            seed,
            store: None,
        }
    }

    /// Also counts in `store`, over the lane that each caller passes to [`RatelimitDecider::ask`].
    #[must_use]
    pub fn with_store(self, store: Option<Arc<RedisStore>>) -> RatelimitDecider {
        RatelimitDecider { store, ..self }
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
    /// [`DecisionError`]; no hit was counted then.
    pub fn decide(
        &self,
        request: &RequestView<'_>,
        package: ProtoPackage,
        room: &mut DecisionBuffers,
    ) -> Result<Response, DecisionError> {
        self.decide_at(request, package, room, self.now())
    }

    /// Decides a request and counts it at the time `now`.
    pub fn decide_at(
        &self,
        request: &RequestView<'_>,
        package: ProtoPackage,
        room: &mut DecisionBuffers,
        now: Time,
    ) -> Result<Response, DecisionError> {
        let rules = self.rules.load();
        let mut met = self.met_by(rules.as_deref(), request, package)?;
        let settings = self.settings.load();
        let domain = self.counter_domain(request.domain);
        room.hits.clear();
        room.hits.extend(matching::limits(&mut met, request).map(|(limited, part)| {
            domain.hit(&limited, request.entries(part), matching::hits(request, part), now)
        }));
        self.counters.count(&mut room.hits, &mut room.sets, settings.policy, now);
        Ok(self.conclude((&met, &room.hits), request, package, &settings, now))
    }

    /// Checks a request and finds what applies to each of its descriptors, in order.
    fn met_by<'r>(
        &self,
        rules: Option<&'r RatelimitRules>,
        request: &RequestView<'_>,
        package: ProtoPackage,
    ) -> Result<Vec<DescriptorMatch<'r>>, DecisionError> {
        self.events.requests.increment(1);
        let checked = check(request, rules, package);
        let rules = checked.inspect_err(|refusal| {
            self.events.errors.fetch_add(1, Relaxed);
            tracing::debug!(
                target: "evenkeel::ratelimit",
                request = %RequestLogForm(request),
                %refusal,
                "not answered"
            );
        })?;
        let mut met = self.meet(rules, request);
        matching::replace(&mut met);
        Ok(met)
    }
}

/// The maximum number of descriptors of one request in a log line.
const SHOWN_MAX: usize = 10;
/// The maximum number of characters of each text in a log line.
const SHOWN_CHARS_MAX: usize = 100;

/// A request in its log form: `DOMAIN: (KEY=VALUE),(KEY=VALUE) | (KEY=VALUE)`.
struct RequestLogForm<'a>(&'a RequestView<'a>);

impl fmt::Display for RequestLogForm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |text: &'_ str| text.escape_debug().take(SHOWN_CHARS_MAX).collect::<String>();
        let RequestView { domain, descriptors, .. } = self.0;
        write!(f, "{}:", short(domain))?;
        for (index, part) in descriptors.iter().take(SHOWN_MAX).enumerate() {
            f.write_str(if index > 0 { " | " } else { " " })?;
            for (index, (key, value)) in self.0.entries(part).iter().enumerate() {
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
    request: &RequestView<'_>,
    rules: Option<&'r RatelimitRules>,
    package: ProtoPackage,
) -> Result<&'r RatelimitRules, DecisionError> {
    let long = |part| request.entries(part).len() > ENTRIES_MAX;
    match rules {
        None if package == ProtoPackage::Old => Err(DecisionError::NoRules),
        _ if request.domain.is_empty() => Err(DecisionError::NoDomain),
        _ if request.descriptors.is_empty() => Err(DecisionError::NoDescriptors),
        _ if request.descriptors.len() > DESCRIPTORS_MAX => Err(DecisionError::TooMany),
        _ if request.descriptors.iter().any(long) => Err(DecisionError::TooMany),
        None => Err(DecisionError::NoRules),
        Some(rules) => Ok(rules),
    }
}
