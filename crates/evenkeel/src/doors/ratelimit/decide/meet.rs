//! Which limit each descriptor of a request meets, and what is counted for it.
//!
//! A limit that the request brings along is taken as it is and the rules are not asked, as in the
//! reference; one without a known unit is no limit (there, it ends the process). Counters are
//! named by domain, window and entries, each part apart.

use super::Decider;
use crate::doors::ratelimit::rules::level::Level;
use crate::doors::ratelimit::rules::{Limit, Rule, Rules, Unit, push_entry};
use crate::doors::ratelimit::tally::Tally;
use crate::doors::ratelimit::wire::Override;
use crate::doors::ratelimit::wire::view::{Part, View};
use crate::engine::windows::Look;
use evenkeel_core::key::{KeyHash, KeyHasher};
use evenkeel_core::units::Time;
use evenkeel_core::windows::{Hit, Length};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What a descriptor met.
pub enum Met<'r> {
    /// No limit.
    Free,
    /// A rule that lets everything pass.
    Unlimited(&'r Rule),
    /// A limit.
    Limited(Limited<'r>),
}

/// A limit that a descriptor met.
pub struct Limited<'r> {
    /// The rule it comes from; `None`: from the request.
    pub rule: Option<&'r Rule>,
    /// The limit.
    pub limit: Limit,
    /// What is counted, and what came of it.
    pub hit: Hit,
    /// What its counter is called in the store, if there is one.
    pub name: Option<String>,
    /// Where it is among the hits of the request.
    pub place: usize,
    tally: Figures<'r>,
}

/// Where the figures of a limit are kept.
enum Figures<'r> {
    /// With its rule.
    Rule(&'r Tally),
    /// Under a path that the request made.
    Other(Arc<Tally>),
}

impl Limited<'_> {
    /// Where its figures are kept.
    pub(super) fn tally(&self) -> &Tally {
        match &self.tally {
            Figures::Rule(tally) => tally,
            Figures::Other(tally) => tally,
        }
    }

    /// Has it seen among what is asked about most; what only looks or gives back is not.
    pub(super) fn show(&self, look: &mut Look<'_>, domain: &str, entries: &[(&str, &str)]) {
        let Hit { key, hits, give_back, .. } = self.hit;
        if hits > 0 && !give_back {
            look.see(key, hits.into(), || path(domain, entries));
        }
    }

    /// Adds what came of it to the figures.
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

/// Lets limits go that others replace: names are looked for in the whole request.
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
    /// The rule, if it is one.
    pub fn rule(&self) -> Option<&'r Rule> {
        match self {
            Met::Free => None,
            Met::Unlimited(rule) => Some(rule),
            Met::Limited(limited) => limited.rule,
        }
    }
}

impl Decider {
    /// What each descriptor meets, in order.
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

    /// What a descriptor meets whose way leads to `rule`.
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

/// How many hits a descriptor stands for, and whether they are given back. What it says itself
/// goes before what the request says for all.
fn hits(request: &View<'_>, part: &Part<'_>) -> (u32, bool) {
    let hits = part.hits_addend.unwrap_or(request.hits_addend.max(1).into());
    (u32::try_from(hits).unwrap_or(u32::MAX), part.is_negative_hits)
}

/// The limit that a request brings along; `None` if nobody knows its unit.
fn overriding(limit: Override) -> Option<Limit> {
    Some(Limit::per(limit.requests_per_unit, Unit::from_wire(limit.unit)?))
}

/// The path that figures of a limit of the request itself are kept under.
fn path(domain: &str, entries: &[(&str, &str)]) -> String {
    let mut path = domain.to_owned();
    for (key, value) in entries {
        path.push('.');
        push_entry(&mut path, key, value);
    }
    path
}
