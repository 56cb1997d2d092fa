//! The prefix rules by which the line door counts tags.
//!
//! A rule either has a limit of its own, with a table and a list, or it shares one limit with other
//! rules and has only its numbers; equal numbers are stored once. So a million rules take some 60
//! bytes each, plus their prefixes. Rules are read by `settings::line` and, from a file of their
//! own, by `settings::line::limits_file`.

use crate::values::word_enum;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::classify::prefix::PrefixTable;
use evenkeel_core::condition::Condition;
use evenkeel_core::limit::{KeyPart, Limit, LimitUnit};
use evenkeel_core::units::{Cost, ExactRate, Nanos, SECOND, Weight};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of rules of one door, without the rule of the empty prefix.
pub const RULES_MAX: usize = 1_000_000;
/// Name of the limit that all rules without a limit of their own share.
pub const SHARED_LIMIT_NAME: &str = "prefixes";
/// Name of the limit for keys that get their numbers with each question (`CL.THROTTLE`).
pub const OWN_NUMBERS_LIMIT_NAME: &str = "cl.throttle";

word_enum! {
    /// How a limit is refilled.
    #[derive(Hash)]
    pub enum Refill {
        /// Whole tokens, at whole multiples of 1/rate.
        Grid = "grid",
        /// Fractions of tokens, continuously.
        Continuous = "continuous",
    }
}

/// The numbers of a limit: a rate, a burst and how it is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateNumbers {
    /// The rate at which tokens are refilled.
    pub pace: ExactRate,
    /// Maximum number of tokens that can be saved up; the configuration allows 1 to 10^9.
    pub burst: u64,
    /// How tokens are refilled.
    pub refill: Refill,
}

impl RateNumbers {
    /// The algorithm that counts tags by these numbers.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.refill {
            Refill::Grid => Algorithm::Grid(GridBucket::new(self.pace, self.burst)),
            Refill::Continuous => {
                Algorithm::Debt(DebtBucket::new(self.pace.rate(), Cost::hits(self.burst)))
            }
        }
    }

    /// A limit with these numbers and a table of its own for `keys_max` tags.
    #[must_use]
    pub fn limit(&self, name: Box<str>, keys_max: usize) -> Limit {
        tag_limit(name, self.algorithm(), keys_max)
    }
}

/// A limit that counts each tag by `algorithm`, in a table of its own for `keys_max` tags.
#[must_use]
pub fn tag_limit(name: Box<str>, algorithm: Algorithm, keys_max: usize) -> Limit {
    Limit {
        name,
        by: vec![KeyPart::Tag],
        when: Condition::default(),
        unit: LimitUnit::Hits,
        algorithm,
        action: None,
        weight: Weight::ONE,
        keys_max,
        shadow: false,
    }
}

/// A limit in which each tag owes time instead of tokens, so that rules with different numbers can
/// share it. One second of debt is paid per second.
#[must_use]
pub fn owed_time(name: &str, keys_max: usize) -> Limit {
    let second =
        RateNumbers { pace: ExactRate::ONE_PER_SECOND, burst: 0, refill: Refill::Continuous };
    second.limit(name.into(), keys_max)
}

/// How tags are counted by a rule that shares a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTagRule {
    /// The algorithm for each tag.
    pub algorithm: Algorithm,
    /// Time to refill one token, at least 1 ns. The debt of a tag in the shared limit is a time, so
    /// other instances do not need to know the numbers.
    pub interval: Nanos,
}

/// How the tags of a prefix are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagRule {
    /// The tags are served, and neither counted nor logged.
    Exempt,
    /// Counted by the limit with this index.
    Own(u8),
    /// Counted in the shared limit, by the [`SharedTagRule`] with this index.
    Shared(u32),
}

/// All rules of a line door, ready for lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct TagRules {
    prefixes: PrefixTable,
    rules: Vec<TagRule>,
    countings: Vec<SharedTagRule>,
}

impl TagRules {
    /// Finds the rule of the longest prefix of `tag`.
    #[must_use]
    pub fn find(&self, tag: &[u8]) -> Option<TagRule> {
        self.prefixes.find(tag).and_then(|at| self.rules.get(at as usize)).copied()
    }

    /// The numbers with this index, as [`TagRule::Shared`] names it.
    #[must_use]
    pub fn counting(&self, place: u32) -> Option<&SharedTagRule> {
        self.countings.get(place as usize)
    }

    /// Number of rules, including the rule of the empty prefix.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule. A configured door always has one, for the empty prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// A file with further rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsFile {
    /// Path of the file.
    pub path: PathBuf,
    /// How the limits of the file are refilled.
    pub refill: Refill,
}

/// Collects rules one by one and builds [`TagRules`] from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TagRulesBuilder {
    written: Vec<(Box<str>, TagRule)>,
    seen: HashSet<Box<str>>,
    numbers: HashMap<(u64, u64, u64, Refill), u32>,
    countings: Vec<SharedTagRule>,
}

impl TagRulesBuilder {
    /// Whether this prefix already has a rule.
    #[must_use]
    pub fn has(&self, prefix: &str) -> bool {
        self.seen.contains(prefix)
    }

    /// Number of rules so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Whether there is no rule yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Adds a rule. The caller checks that the prefix has none yet.
    pub fn add(&mut self, prefix: &str, rule: TagRule) {
        self.seen.insert(prefix.into());
        self.written.push((prefix.into(), rule));
    }

    /// Adds a rule that counts in the shared limit. Equal numbers are stored once.
    pub fn add_shared(&mut self, prefix: &str, numbers: RateNumbers) {
        let RateNumbers { pace, burst, refill } = numbers;
        let interval = u128::from(pace.period().0) * u128::from(SECOND);
        let interval = interval / u128::from(pace.cost().0.max(1));
        let interval = Nanos(u64::try_from(interval).unwrap_or(u64::MAX).max(1));
        let key = (pace.cost().0, pace.period().0, burst, refill);
        let next = self.countings.len() as u32;
        let place = *self.numbers.entry(key).or_insert(next);
        if place == next {
            self.countings.push(SharedTagRule { algorithm: numbers.algorithm(), interval });
        }
        self.add(prefix, TagRule::Shared(place));
    }

    /// Builds the lookup table of all rules.
    #[must_use]
    pub fn finish(self) -> Arc<TagRules> {
        let written = self.written.iter().zip(0..);
        let prefixes = written.map(|((prefix, _), at)| (prefix.as_bytes(), at));
        Arc::new(TagRules {
            prefixes: PrefixTable::new(prefixes),
            rules: self.written.iter().map(|(_, rule)| *rule).collect(),
            countings: self.countings,
        })
    }
}
