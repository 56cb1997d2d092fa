//! Finds the limit that applies to each descriptor of a request, and prepares its counter.
//!
//! If a descriptor carries a limit of its own, that limit applies and the rules are not consulted,
//! as in the reference server. A limit with an unknown unit is ignored and the rules apply; the
//! reference server crashes on it. The key of a counter is a hash of the domain, the algorithm, the
//! window and the entries; each is hashed as a separate part.

use super::Decider;
use crate::rules::level::Level;
use crate::rules::{Limit, Rule, Rules, Unit, push_entry};
use crate::tally::Tally;
use crate::wire::Override;
use crate::wire::view::{Part, View};
use evenkeel_core::key::{KeyHash, KeyHasher};
use evenkeel_core::units::Time;
use evenkeel_core::windows::{Hit, Length};
use evenkeel_engine::windows::Look;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The limit or rule that applies to a descriptor.
pub enum Met<'r> {
    /// Neither a limit nor a rule applies.
    Free,
    /// A rule that allows everything.
    Unlimited(&'r Rule),
    /// A limit with its counter.
    Limited(Limited<'r>),
}

/// A limit that applies to a descriptor.
pub struct Limited<'r> {
    /// The rule that the limit comes from; `None` if the request carries the limit.
    pub rule: Option<&'r Rule>,
    /// The number of requests and the window.
    pub limit: Limit,
    /// The hits to count, and after counting their result.
    pub hit: Hit,
    /// The name of the counter in the store; `None` without a store.
    pub name: Option<String>,
    /// The index of `hit` in the list of hits that are counted together.
    pub place: usize,
    tally: Figures<'r>,
}

/// The place where the metrics of a limit are kept.
enum Figures<'r> {
    /// The metrics of the rule that the limit comes from.
    Rule(&'r Tally),
    /// Under a path that depends on the request.
    Other(Arc<Tally>),
}

impl Limited<'_> {
    /// The metrics of this limit.
    pub(super) fn tally(&self) -> &Tally {
        match &self.tally {
            Figures::Rule(tally) => tally,
            Figures::Other(tally) => tally,
        }
    }

    /// Adds the descriptor to the list of the most requested ones. Requests without hits and hits
    /// that are given back are left out.
    pub(super) fn show(&self, look: &mut Look<'_>, domain: &str, entries: &[(&str, &str)]) {
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
pub fn replace(met: &mut [Met<'_>]) {
    let mut replaced: Vec<&str> = Vec::new();
    for met in &*met {
        replaced.extend(met.rule().into_iter().flat_map(|rule| &rule.replaces).map(|name| &**name));
    }
    if replaced.is_empty() {
        return;
    }
    for met in met {
        if let Met::Limited(limited) = met
            && let Some(name) = limited.rule.and_then(|rule| rule.name.as_deref())
            && replaced.contains(&name)
        {
            *met = Met::Free;
        }
    }
}

impl<'r> Met<'r> {
    /// The rule that applies, if one does.
    pub fn rule(&self) -> Option<&'r Rule> {
        match self {
            Met::Free => None,
            Met::Unlimited(rule) => Some(rule),
            Met::Limited(limited) => limited.rule,
        }
    }
}

impl Decider {
    /// Finds the limit for each descriptor, in order.
    pub(super) fn meet<'r>(&self, rules: &'r Rules, request: &View<'_>, now: Time) -> Vec<Met<'r>> {
        let Some(rules) = rules.domain(request.domain) else {
            let unknown = self.unknown_domains.of("", request.domain);
            unknown.total_hits.fetch_add(request.descriptors.len() as u64, Relaxed);
            return request.descriptors.iter().map(|_| Met::Free).collect();
        };
        let meet = |part| self.meet_one(rules, request, part, now);
        request.descriptors.iter().map(meet).collect()
    }

    fn meet_one<'r>(
        &self,
        rules: &'r Level,
        request: &View<'_>,
        part: &Part<'_>,
        now: Time,
    ) -> Met<'r> {
        let (domain, entries) = (request.domain, part.entries.as_slice());
        let hits = hits(request, part);
        if let Some(limit) = part.limit.and_then(overriding) {
            let tally = Figures::Other(self.tallies.of(domain, &path(domain, entries)));
            let key = self.key(domain, limit, entries.iter().copied());
            let mut limited = limited(None, limit, key, hits, now, tally);
            limited.name = self.name(domain, &limited, entries.iter().copied());
            return Met::Limited(limited);
        }
        match rules.rule(entries) {
            None => Met::Free,
            Some(rule) => self.by_rule(rule, domain, entries, hits, now),
        }
    }

    /// Prepares the limit of `rule` for a descriptor that matches it.
    pub(super) fn by_rule<'r>(
        &self,
        rule: &'r Rule,
        domain: &str,
        entries: &[(&str, &str)],
        hits: (u32, bool),
        now: Time,
    ) -> Met<'r> {
        let Some(limit) = rule.limit else { return Met::Unlimited(rule) };
        let tally = match rule.path_of(domain, entries) {
            Some(path) => Figures::Other(self.tallies.of(domain, &path)),
            None => Figures::Rule(&rule.tally),
        };
        let counted = rule
            .steps
            .iter()
            .zip(entries)
            .map(|(step, (key, value))| (*key, step.counted(key).unwrap_or(value)));
        let key = self.key(domain, limit, counted.clone());
        let mut limited = limited(Some(rule), limit, key, hits, now, tally);
        limited.name = self.name(domain, &limited, counted);
        Met::Limited(limited)
    }

    fn name<'a>(
        &self,
        domain: &str,
        Limited { limit, hit, .. }: &Limited<'_>,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<String> {
        let naming = self.naming.as_ref()?;
        Some(naming.counter(domain, (limit.algorithm, limit.length, hit.window), entries))
    }

    fn key<'a>(
        &self,
        domain: &str,
        limit: Limit,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> KeyHash {
        let mut hasher = KeyHasher::new(&self.seed);
        hasher.part(domain.as_bytes());
        let (kind, count) = match limit.length {
            Length::Seconds(count) => (b's', count),
            Length::Months(count) => (b'm', count),
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

fn limited<'r>(
    rule: Option<&'r Rule>,
    limit: Limit,
    key: KeyHash,
    (hits, give_back): (u32, bool),
    now: Time,
    tally: Figures<'r>,
) -> Limited<'r> {
    let hit = Hit::new(key, limit.length.window(now), limit.requests, hits);
    let hit = Hit { give_back, algorithm: limit.algorithm, ..hit };
    Limited { rule, limit, hit, name: None, place: 0, tally }
}

/// The number of hits of a descriptor, and whether they are given back. The number in the
/// descriptor takes precedence over the one in the request.
fn hits(request: &View<'_>, part: &Part<'_>) -> (u32, bool) {
    let hits = part.hits_addend.unwrap_or(request.hits_addend.max(1).into());
    (u32::try_from(hits).unwrap_or(u32::MAX), part.is_negative_hits)
}

/// The limit that a descriptor carries; `None` if its unit is unknown.
fn overriding(limit: Override) -> Option<Limit> {
    Some(Limit::per(limit.requests_per_unit, Unit::from_wire(limit.unit)?))
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
