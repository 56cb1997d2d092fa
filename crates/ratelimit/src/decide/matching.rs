//! Finds the limit that applies to each descriptor of a request, and prepares its counter.
//!
//! If a descriptor carries a limit of its own, that limit applies and the rules are not consulted,
//! as in the reference server. A limit with an unknown unit is ignored and the rules apply; the
//! reference server crashes on it. The key of a counter is a hash of the domain, the algorithm, the
//! window and the entries; each is hashed as a separate part.

use super::RatelimitDecider;
use crate::rules::{RateUnit, RatelimitRule, RatelimitRules, RuleLimit, push_entry};
use crate::tally::RuleTally;
use crate::wire::Override;
use crate::wire::view::{DescriptorView, RequestView};
use evenkeel_core::key::KeyHasher;
use evenkeel_core::units::Time;
use evenkeel_core::windows::{Hit, WindowLength};
use evenkeel_engine::windows::TopDescriptorsGuard;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The limit or rule that applies to a descriptor.
#[derive(Clone, Copy)]
pub enum DescriptorMatch<'r> {
    /// Neither a limit nor a rule applies.
    Free,
    /// A rule that allows everything.
    Unlimited(&'r RatelimitRule),
    /// A limit.
    Limited(LimitMatch<'r>),
}

/// The limit of a descriptor.
#[derive(Clone, Copy)]
pub struct LimitMatch<'r> {
    /// The rule that the limit comes from; `None` if the request carries the limit.
    pub rule: Option<&'r RatelimitRule>,
    /// The number of requests and the window.
    pub limit: RuleLimit,
    /// The index of its hit in the list of hits that are counted together.
    pub hit_index: usize,
}

/// The place where the metrics of a limit are kept.
pub(super) enum TallyRef<'r> {
    /// The metrics of the rule that the limit comes from.
    Rule(&'r RuleTally),
    /// Under a path that depends on the request.
    Other(Arc<RuleTally>),
}

impl Deref for TallyRef<'_> {
    type Target = RuleTally;

    fn deref(&self) -> &RuleTally {
        match self {
            TallyRef::Rule(tally) => tally,
            TallyRef::Other(tally) => tally,
        }
    }
}

impl TallyRef<'_> {
    /// Adds a counted hit of `limited` to the metrics.
    pub(super) fn count(&self, limited: &LimitMatch<'_>, hit: &Hit, near_limit_ratio: f32) {
        let hits = u64::from(hit.hits);
        if hit.give_back {
            self.total_negative_hits.fetch_add(hits, Relaxed);
            return;
        }
        let over = if hit.spared {
            self.over_limit.fetch_add(hits, Relaxed);
            self.over_limit_with_local_cache.fetch_add(hits, Relaxed);
            hits
        } else {
            let (before, after) = (u64::from(hit.before), u64::from(hit.after));
            // Another limit stopped them, or the counter is full.
            let uncounted = hits.saturating_sub(after - before);
            if uncounted > 0 {
                self.other_hits.fetch_add(uncounted, Relaxed);
            }
            self.attribute(before, after, hit.limit.into(), limited.near(near_limit_ratio))
        };
        if hit.is_over() && limited.rule.is_some_and(|rule| rule.shadow) {
            self.shadow_mode.fetch_add(over, Relaxed);
        }
    }
}

impl<'r> LimitMatch<'r> {
    /// The count above which a hit is near the limit.
    pub(super) fn near(&self, ratio: f32) -> u64 {
        // In 32 bits and rounded down, as the reference computes it.
        (self.limit.requests as f32 * ratio) as u64
    }

    /// The key and the value by which each entry is counted. If the rule shares its threshold among
    /// all values that match a pattern, the pattern replaces the value.
    pub(super) fn counted<'a>(
        &self,
        entries: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a str, &'a str)>
    where
        'r: 'a,
    {
        let steps = self.rule.map_or(&[][..], |rule| &rule.steps);
        entries.iter().enumerate().map(|(index, (key, value))| {
            (*key, steps.get(index).and_then(|step| step.counted(key)).unwrap_or(value))
        })
    }
}

/// Adds a descriptor to the list of the most requested ones. Requests without hits and hits that
/// are given back are left out.
pub(super) fn sample(
    look: &mut TopDescriptorsGuard<'_>,
    hit: &Hit,
    domain: &str,
    entries: &[(&str, &str)],
) {
    if hit.hits > 0 && !hit.give_back {
        look.see(hit.key, hit.hits.into(), || path(domain, entries));
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
    /// The match of a descriptor for which `rule` was found.
    pub(super) fn by_rule(rule: Option<&'r RatelimitRule>) -> DescriptorMatch<'r> {
        match (rule, rule.and_then(|rule| rule.limit)) {
            (_, Some(limit)) => DescriptorMatch::Limited(LimitMatch { rule, limit, hit_index: 0 }),
            (Some(rule), None) => DescriptorMatch::Unlimited(rule),
            (None, None) => DescriptorMatch::Free,
        }
    }

    /// The rule that applies, if one does.
    pub fn rule(&self) -> Option<&'r RatelimitRule> {
        match self {
            DescriptorMatch::Free => None,
            DescriptorMatch::Unlimited(rule) => Some(rule),
            DescriptorMatch::Limited(limited) => limited.rule,
        }
    }
}

/// The begin of the keys of a domain's counters.
pub(super) struct CounterDomain(KeyHasher);

impl CounterDomain {
    /// Prepares the counter of a limit. `hits`: their number, and whether they are given back.
    pub(super) fn hit(
        &self,
        limited: &LimitMatch<'_>,
        entries: &[(&str, &str)],
        (hits, give_back): (u32, bool),
        now: Time,
    ) -> Hit {
        let RuleLimit { requests, length, algorithm, .. } = limited.limit;
        let mut hasher = self.0.clone();
        let (is_months, count) = match length {
            WindowLength::Seconds(count) => (false, count),
            WindowLength::Months(count) => (true, count),
        };
        let kind = (algorithm as u64) << 1 | u64::from(is_months);
        hasher.number(kind << 32 | u64::from(count));
        for (key, value) in limited.counted(entries) {
            hasher.pair(key.as_bytes(), value.as_bytes());
        }
        let hit = Hit::new(hasher.finish(), length.window(now), requests, hits);
        Hit { give_back, algorithm, ..hit }
    }
}

impl RatelimitDecider {
    /// Begins the keys of all counters of a domain.
    pub(super) fn counter_domain(&self, name: &str) -> CounterDomain {
        let mut hasher = KeyHasher::new(&self.seed);
        hasher.part(name.as_bytes());
        CounterDomain(hasher)
    }

    /// Finds the limit for each descriptor, in order.
    pub(super) fn meet<'r>(
        &self,
        rules: &'r RatelimitRules,
        request: &RequestView<'_>,
    ) -> Vec<DescriptorMatch<'r>> {
        let Some(rules) = rules.domain(request.domain) else {
            let unknown = self.unknown_domains.for_request("", request.domain);
            unknown.other_hits.fetch_add(request.descriptors.len() as u64, Relaxed);
            return vec![DescriptorMatch::Free; request.descriptors.len()];
        };
        let meet = |part: &DescriptorView| match part.limit.and_then(overriding) {
            Some(limit) => DescriptorMatch::Limited(LimitMatch { rule: None, limit, hit_index: 0 }),
            None => DescriptorMatch::by_rule(rules.rule(request.entries(part))),
        };
        request.descriptors.iter().map(meet).collect()
    }

    /// The metrics of a limit.
    pub(super) fn tally<'r>(
        &self,
        limited: &LimitMatch<'r>,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> TallyRef<'r> {
        let path = match limited.rule {
            None => path(domain, entries),
            Some(rule) => match rule.path_of(domain, entries) {
                None => return TallyRef::Rule(&rule.tally),
                Some(path) => path,
            },
        };
        TallyRef::Other(self.tallies.for_request(domain, &path))
    }
}

/// Numbers the limits of `met` in order, and returns each with its descriptor.
pub(super) fn limits<'a, 'r>(
    met: &'a mut [DescriptorMatch<'r>],
    request: &'a RequestView<'_>,
) -> impl Iterator<Item = (LimitMatch<'r>, &'a DescriptorView)> {
    let limited = met.iter_mut().zip(&request.descriptors).filter_map(|(met, part)| match met {
        DescriptorMatch::Limited(limited) => Some((limited, part)),
        _ => None,
    });
    limited.enumerate().map(|(index, (limited, part))| {
        limited.hit_index = index;
        (*limited, part)
    })
}

/// The number of hits of a descriptor, and whether they are given back. The number in the
/// descriptor takes precedence over the one in the request.
pub(super) fn hits(request: &RequestView<'_>, part: &DescriptorView) -> (u32, bool) {
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
