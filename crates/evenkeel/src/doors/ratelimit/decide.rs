//! One request of the rate limit service: from its descriptors to the answer.
//!
//! The rules say which limits apply (`rules`), the core counts them all at once
//! (`evenkeel_core::windows`), and here the answer is made of both: shadow, quota, replacements,
//! headers, metadata, and the figures that the reference keeps. No bytes are read or written here
//! (`grpc`, `json`), and nothing is waited for.

mod answer;
mod asked;
mod meet;
pub mod used;

use super::rules::Rules;
use super::tally::Tallies;
use super::wire::Response;
use super::wire::view::{DESCRIPTORS_MAX, ENTRIES_MAX, Part, View};
use crate::clock::Clock;
use crate::config::settings::RatelimitAnswers;
use crate::engine::windows::Counters;
use crate::store::redis::{Naming, Store, Unanswered};
use crate::watch::metrics::REQUESTS;
use crate::watch::registry::{Counter, Histogram, Registry};
use answer::Answer;
use arc_swap::{ArcSwap, ArcSwapOption};
use evenkeel_core::key::Seed;
use evenkeel_core::units::Time;
use evenkeel_core::windows::Hit;
use meet::Met;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Why a request gets no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// Nothing to decide.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// There have never been rules.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The store gives no answer, and the settings want that told.
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    /// More than anybody needs.
    #[error("more than {DESCRIPTORS_MAX} descriptors, or more than {ENTRIES_MAX} entries in one")]
    TooMany,
}

/// Which of the packages a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// `envoy.service.ratelimit.v3`.
    V3,
    /// `envoy.service.ratelimit.v2`, and lyft's first: they know less.
    Old,
}

/// What is counted beside the figures of rules.
#[derive(Debug, Default)]
pub struct Events {
    /// Requests that were asked.
    pub requests: Counter,
    /// Requests that got no decision.
    pub errors: AtomicU64,
    /// Requests that got none because the store gave no answer.
    pub store_errors: AtomicU64,
    /// Requests that were over a limit and passed because of the shadow mode for all.
    pub global_shadow_mode: AtomicU64,
    /// Rules that were taken over.
    pub loads: AtomicU64,
    /// Rules that were refused.
    pub load_errors: AtomicU64,
    /// How long calls over gRPC took; `None`: nobody is told, and no clock is read for it.
    pub response_time: Option<Histogram>,
}

impl Events {
    /// Those that other output shows too are counted in `registry`.
    #[must_use]
    pub fn of(registry: &Registry) -> Events {
        Events { requests: registry.counter(&REQUESTS, &["ratelimit"]), ..Events::default() }
    }
}

/// The service, shared by all threads and ports.
pub struct Decider {
    /// The rules in force; none before they have been read for the first time.
    pub rules: ArcSwapOption<Rules>,
    /// The figures of the rules.
    pub tallies: Tallies,
    /// Requests for domains without rules.
    pub unknown_domains: Tallies,
    /// Other figures.
    pub events: Events,
    /// How it answers.
    pub settings: ArcSwap<RatelimitAnswers>,
    /// The counters.
    pub counters: Arc<Counters>,
    pub(super) clock: Clock,
    /// How far the system's clock was moved since the start: windows follow it.
    step: AtomicI64,
    seed: Seed,
    /// Where counters are counted too, if they are,
    store: Option<Arc<Store>>,
    /// and how they are called there.
    naming: Option<Naming>,
    /// How long compatible keys are kept beyond their window.
    jitter: Duration,
}

/// Room to work in, kept by each thread to save making it anew.
#[derive(Default)]
pub struct Room {
    hits: Vec<Hit>,
    sets: Vec<usize>,
}

impl Decider {
    /// A service without rules that counts in `counters`, whose keys are hashed with `seed`.
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

    /// Counters are to be counted in a store too, by the lanes of those who ask.
    #[must_use]
    pub fn with_store(self, store: Option<Arc<Store>>) -> Decider {
        let jitter = store.as_ref().map_or(Duration::ZERO, |store| store.jitter());
        Decider { naming: store.as_ref().map(|store| store.naming()), store, jitter, ..self }
    }

    /// Follows the system's clock if it was set; to be called once a second.
    pub fn follow_clock(&self) {
        let step = self.clock.step();
        if (step - self.step.load(Relaxed)).unsigned_abs() > evenkeel_core::units::SECOND {
            self.step.store(step, Relaxed);
        }
    }

    /// The present by a clock that nobody sets, for what is waited for.
    #[must_use]
    pub fn steady_now(&self) -> Time {
        self.clock.now()
    }

    /// The present by the system's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.clock.now().0.saturating_add_signed(self.step.load(Relaxed)))
    }

    /// Decides a request and counts it.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was counted then.
    pub fn decide(
        &self,
        request: &View<'_>,
        package: Package,
        room: &mut Room,
    ) -> Result<Response, Refusal> {
        self.decide_at(request, package, room, self.now())
    }

    /// The same at a moment that the caller says.
    ///
    /// # Errors
    /// As [`Decider::decide`].
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

    /// What each descriptor of a request meets that can be decided.
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

    /// The answer, once all has been counted; and the figures.
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

/// The most descriptors of a request that the log shows,
const SHOWN_MAX: usize = 10;
/// and the most characters of each text in them.
const SHOWN_CHARS_MAX: usize = 100;

/// A request as the log shows it: `DOMAIN: (KEY=VALUE),(KEY=VALUE) | (KEY=VALUE)`.
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

/// The rules, if a request can be decided. Whose clients know only the old package (Fencer's)
/// are told of missing rules first.
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
