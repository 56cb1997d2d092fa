//! Finds the limit that applies to each descriptor of a request, and prepares its counter.
//!
//! If a descriptor carries a limit of its own, that limit applies and the rules are not consulted,
//! as in the reference server. A limit with an unknown unit is ignored and the rules apply; the
//! reference server crashes on it. The key of a counter is a hash of the domain, the algorithm, the
//! window and the entries; each is hashed as a separate part.

use super::RatelimitDecider;
use crate::rules::level::RuleLevel;
use crate::rules::{RateUnit, RatelimitRule, RatelimitRules, RuleLimit, push_entry};
use crate::tally::RuleTally;
use crate::wire::Override;
use crate::wire::view::{DescriptorView, RequestView};
use evenkeel_core::key::{KeyHash, KeyHasher};
use evenkeel_core::units::Time;
use evenkeel_core::windows::{Hit, WindowLength};
use evenkeel_engine::windows::TopDescriptorsGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The limit or rule that applies to a descriptor.
pub enum DescriptorMatch<'r> {
    /// Neither a limit nor a rule applies.
    Free,
    /// A rule that allows everything.
    Unlimited(&'r RatelimitRule),
    /// A limit with its counter.
    Limited(LimitedDescriptor<'r>),
}

pub struct LimitedDescriptor<'r> {
    /// The rule that the limit comes from; `None` if the request carries the limit.
    pub rule: Option<&'r RatelimitRule>,
    /// The number of requests and the window.
    pub limit: RuleLimit,
    /// The hits to count, and after counting their result.
    pub hit: Hit,
    /// The name of the counter in the store; `None` without a store.
    pub name: Option<String>,
    /// The index of `hit` in the list of hits that are counted together.
    pub hit_index: usize,
    tally: TallyRef<'r>,
}

/// The place where the metrics of a limit are kept.
enum TallyRef<'r> {
    /// The metrics of the rule that the limit comes from.
    Rule(&'r RuleTally),
    /// Under a path that depends on the request.
    Other(Arc<RuleTally>),
}

impl LimitedDescriptor<'_> {
    pub(super) fn tally(&self) -> &RuleTally {
        match &self.tally {
            TallyRef::Rule(tally) => tally,
            TallyRef::Other(tally) => tally,
        }
    }

    /// Adds the descriptor to the list of the most requested ones. Requests without hits and hits
    /// that are given back are left out.
    pub(super) fn sample(
        &self,
        look: &mut TopDescriptorsGuard<'_>,
        domain: &str,
        entries: &[(&str, &str)],
    ) {
        let Hit { key, hits, give_back, .. } = self.hit;
        if hits > 0 && !give_back {
            look.see(key, hits.into(), || path(domain, entries));
        }
    }

    /// Adds the result to the metrics. Call it only after `hit` has been counted.
    pub fn count(&self, near_limit_ratio: f32) {
        let Hit { before, after, hits, give_back, spared, .. } = self.hit;
        let tally = self.tally();
        let hits = u64::from(hits);
        if give_back {
            tally.total_negative_hits.fetch_add(hits, Relaxed);
            return;
        }
        tally.total_hits.fetch_add(hits, Relaxed);
        let over = if spared {
            tally.over_limit.fetch_add(hits, Relaxed);
            tally.over_limit_with_local_cache.fetch_add(hits, Relaxed);
            hits
        } else {
            let limit = self.limit.requests;
            // In 32 bits, as the reference computes it.
            let near = (limit as f32 * near_limit_ratio).floor() as u64;
            tally.attribute(before.into(), after.into(), limit.into(), near)
        };
        if self.hit.is_over() && self.rule.is_some_and(|rule| rule.shadow) {
            tally.shadow_mode.fetch_add(over, Relaxed);
        }
    }
}

/// Drops the limits that other limits of the same request replace. Names are compared over the
/// whole request.
pub fn replace(met: &mut [DescriptorMatch<'_>]) {
    let mut replaced: Vec<&str> = Vec::new();
    for met in &*met {
        replaced.extend(met.rule().into_iter().flat_map(|rule| &rule.replaces).map(|name| &**name));
    }
    if replaced.is_empty() {
        return;
    }
    for met in met {
        if let DescriptorMatch::Limited(limited) = met
            && let Some(name) = limited.rule.and_then(|rule| rule.name.as_deref())
            && replaced.contains(&name)
        {
            *met = DescriptorMatch::Free;
        }
    }
}

impl<'r> DescriptorMatch<'r> {
    /// The rule that applies, if one does.
    pub fn rule(&self) -> Option<&'r RatelimitRule> {
        match self {
            DescriptorMatch::Free => None,
            DescriptorMatch::Unlimited(rule) => Some(rule),
            DescriptorMatch::Limited(limited) => limited.rule,
        }
    }
}

/// A domain, and the begin of the keys of its counters.
pub(super) struct CounterDomain<'a> {
    name: &'a str,
    hasher: KeyHasher,
}

impl CounterDomain<'_> {
    fn key<'a>(
        &self,
        limit: RuleLimit,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> KeyHash {
        let mut hasher = self.hasher.clone();
        let (kind, count) = match limit.length {
            WindowLength::Seconds(count) => (b's', count),
            WindowLength::Months(count) => (b'm', count),
        };
        let [a, b, c, d] = count.to_le_bytes();
        hasher.part(&[kind, limit.algorithm as u8, a, b, c, d]);
        for (key, value) in entries {
            hasher.part(key.as_bytes());
            hasher.part(value.as_bytes());
        }
        hasher.finish()
    }
}

impl RatelimitDecider {
    /// Begins the keys of all counters of a domain.
    pub(super) fn counter_domain<'a>(&self, name: &'a str) -> CounterDomain<'a> {
        let mut hasher = KeyHasher::new(&self.seed);
        hasher.part(name.as_bytes());
        CounterDomain { name, hasher }
    }

    /// Finds the limit for each descriptor, in order.
    pub(super) fn meet<'r>(
        &self,
        rules: &'r RatelimitRules,
        request: &RequestView<'_>,
        now: Time,
    ) -> Vec<DescriptorMatch<'r>> {
        let Some(rules) = rules.domain(request.domain) else {
            let unknown = self.unknown_domains.for_request("", request.domain);
            unknown.total_hits.fetch_add(request.descriptors.len() as u64, Relaxed);
            return request.descriptors.iter().map(|_| DescriptorMatch::Free).collect();
        };
        let domain = self.counter_domain(request.domain);
        let meet = |part| self.meet_one(rules, &domain, part, hits(request, part), now);
        request.descriptors.iter().map(meet).collect()
    }

    fn meet_one<'r>(
        &self,
        rules: &'r RuleLevel,
        domain: &CounterDomain<'_>,
        part: &DescriptorView<'_>,
        hits: (u32, bool),
        now: Time,
    ) -> DescriptorMatch<'r> {
        let entries = part.entries.as_slice();
        if let Some(limit) = part.limit.and_then(overriding) {
            let path = path(domain.name, entries);
            let tally = TallyRef::Other(self.tallies.for_request(domain.name, &path));
            let key = domain.key(limit, entries.iter().copied());
            let mut limited = limited(None, limit, key, hits, now, tally);
            limited.name = self.name(domain.name, &limited, entries.iter().copied());
            return DescriptorMatch::Limited(limited);
        }
        match rules.rule(entries) {
            None => DescriptorMatch::Free,
            Some(rule) => self.by_rule(rule, domain, entries, hits, now),
        }
    }

    /// Prepares the limit of `rule` for a descriptor that matches it.
    pub(super) fn by_rule<'r>(
        &self,
        rule: &'r RatelimitRule,
        domain: &CounterDomain<'_>,
        entries: &[(&str, &str)],
        hits: (u32, bool),
        now: Time,
    ) -> DescriptorMatch<'r> {
        let Some(limit) = rule.limit else { return DescriptorMatch::Unlimited(rule) };
        let tally = match rule.path_of(domain.name, entries) {
            Some(path) => TallyRef::Other(self.tallies.for_request(domain.name, &path)),
            None => TallyRef::Rule(&rule.tally),
        };
        let counted = rule
            .steps
            .iter()
            .zip(entries)
            .map(|(step, (key, value))| (*key, step.counted(key).unwrap_or(value)));
        let key = domain.key(limit, counted.clone());
        let mut limited = limited(Some(rule), limit, key, hits, now, tally);
        limited.name = self.name(domain.name, &limited, counted);
        DescriptorMatch::Limited(limited)
    }

    fn name<'a>(
        &self,
        domain: &str,
        LimitedDescriptor { limit, hit, .. }: &LimitedDescriptor<'_>,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<String> {
        let naming = &self.store.as_ref()?.naming;
        Some(naming.counter(domain, limit.algorithm, limit.length, hit.window, entries))
    }
}

fn limited<'r>(
    rule: Option<&'r RatelimitRule>,
    limit: RuleLimit,
    key: KeyHash,
    (hits, give_back): (u32, bool),
    now: Time,
    tally: TallyRef<'r>,
) -> LimitedDescriptor<'r> {
    let hit = Hit::new(key, limit.length.window(now), limit.requests, hits);
    let hit = Hit { give_back, algorithm: limit.algorithm, ..hit };
    LimitedDescriptor { rule, limit, hit, name: None, hit_index: 0, tally }
}

/// The number of hits of a descriptor, and whether they are given back. The number in the
/// descriptor takes precedence over the one in the request.
fn hits(request: &RequestView<'_>, part: &DescriptorView<'_>) -> (u32, bool) {
    let hits = part.hits_addend.unwrap_or(request.hits_addend.max(1).into());
    (u32::try_from(hits).unwrap_or(u32::MAX), part.is_negative_hits)
}

/// The limit that a descriptor carries; `None` if its unit is unknown.
fn overriding(limit: Override) -> Option<RuleLimit> {
    Some(RuleLimit::per(limit.requests_per_unit, RateUnit::from_wire(limit.unit)?))
}

/// The metrics path for a limit that the request carries.
fn path(domain: &str, entries: &[(&str, &str)]) -> String {
    let mut path = domain.to_owned();
    for (key, value) in entries {
        path.push('.');
        push_entry(&mut path, key, value);
    }
    path
}
