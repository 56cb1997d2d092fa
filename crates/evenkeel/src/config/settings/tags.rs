//! What the line door counts tags by: a rule for each prefix.
//!
//! A rule has a limit, with a table and a list of its own, or shares one with others and has only
//! numbers of its own; equal numbers are kept once. So a million rules take some 60 bytes each
//! beside their prefixes. Where they are written: `section::line`; in a file of their own:
//! `source::prefixes`.

use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::Debt;
use evenkeel_core::bucket::grid::Grid;
use evenkeel_core::classify::prefix::Prefixes;
use evenkeel_core::limit::{Limit, Part, Unit, When};
use evenkeel_core::units::{Cost, Nanos, Pace, SECOND, Weight};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The most rules of a door.
pub const RULES_MAX: usize = 1_000_000;
/// The limit of all rules that have none of their own.
pub const SHARED: &str = "prefixes";
/// The limit of keys whose numbers come with each question.
pub const OWN_NUMBERS: &str = "cl.throttle";

/// How a limit is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Whole tokens on whole multiples of 1/rate.
    Grid,
    /// Parts of tokens as time passes.
    Continuous,
}

/// A rate, a burst and how it is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// What comes in.
    pub pace: Pace,
    /// The most that is saved up.
    pub burst: u64,
    /// How it comes in.
    pub refill: Refill,
}

impl Numbers {
    /// How tags are counted by these numbers.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.refill {
            Refill::Grid => Algorithm::Grid(Grid::new(self.pace, self.burst)),
            Refill::Continuous => {
                Algorithm::Debt(Debt::new(self.pace.rate(), Cost::hits(self.burst)))
            }
        }
    }

    /// A limit with these numbers and a table of its own.
    #[must_use]
    pub fn limit(&self, name: Box<str>, keys_max: usize) -> Limit {
        Limit {
            name,
            by: vec![Part::Tag],
            when: When::default(),
            unit: Unit::Hits,
            algorithm: self.algorithm(),
            action: None,
            weight: Weight::ONE,
            keys_max,
            shadow: false,
        }
    }
}

/// A limit in which each tag owes a time, whatever its numbers are: a second of it is paid each
/// second.
#[must_use]
pub fn owed_time(name: &str, keys_max: usize) -> Limit {
    let second = Numbers { pace: Pace::ONE_PER_SECOND, burst: 0, refill: Refill::Continuous };
    second.limit(name.into(), keys_max)
}

/// The numbers of rules that share a limit, as they are counted by.
#[derive(Clone, Debug, PartialEq)]
pub struct Counting {
    /// How each tag is counted.
    pub algorithm: Algorithm,
    /// How long a hit takes to come in. What a tag owes in the shared limit is a time, for which
    /// other instances need not know the numbers.
    pub interval: Nanos,
}

/// What a prefix says of the tags that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagRule {
    /// They are served, and neither counted nor logged.
    Exempt,
    /// They are counted by the limit at this place.
    Own(u8),
    /// They are counted by the numbers at this place.
    Shared(u32),
}

/// All rules of a door.
#[derive(Clone, Debug, PartialEq)]
pub struct TagRules {
    prefixes: Prefixes,
    rules: Vec<TagRule>,
    countings: Vec<Counting>,
}

impl TagRules {
    /// The rule of the longest prefix that `tag` begins with.
    #[must_use]
    pub fn find(&self, tag: &[u8]) -> Option<TagRule> {
        self.prefixes.find(tag).and_then(|at| self.rules.get(at as usize)).copied()
    }

    /// The numbers at a place.
    #[must_use]
    pub fn counting(&self, place: u32) -> Option<&Counting> {
        self.countings.get(place as usize)
    }

    /// How many there are, that of all other tags included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none; there always is that of all other tags.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// A file with further rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsFile {
    /// Where it is.
    pub path: PathBuf,
    /// How its limits are refilled.
    pub refill: Refill,
}

/// Rules as they are read, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Builder {
    written: Vec<(Box<str>, TagRule)>,
    seen: HashSet<Box<str>>,
    numbers: HashMap<(u64, u64, u64, Refill), u32>,
    countings: Vec<Counting>,
}

impl Builder {
    /// Whether this prefix has a rule.
    #[must_use]
    pub fn has(&self, prefix: &str) -> bool {
        self.seen.contains(prefix)
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Adds a rule.
    pub fn add(&mut self, prefix: &str, rule: TagRule) {
        self.seen.insert(prefix.into());
        self.written.push((prefix.into(), rule));
    }

    /// Adds a rule of the shared limit.
    pub fn add_shared(&mut self, prefix: &str, numbers: Numbers) {
        let Numbers { pace, burst, refill } = numbers;
        let interval = u128::from(pace.period().0) * u128::from(SECOND);
        let interval = interval / u128::from(pace.cost().0.max(1));
        let interval = Nanos(u64::try_from(interval).unwrap_or(u64::MAX).max(1));
        let key = (pace.cost().0, pace.period().0, burst, refill);
        let next = self.countings.len() as u32;
        let place = *self.numbers.entry(key).or_insert(next);
        if place == next {
            self.countings.push(Counting { algorithm: numbers.algorithm(), interval });
        }
        self.add(prefix, TagRule::Shared(place));
    }

    /// All of them, to be looked up.
    #[must_use]
    pub fn finish(self) -> Arc<TagRules> {
        let written = self.written.iter().zip(0..);
        let prefixes = written.map(|((prefix, _), at)| (prefix.as_bytes(), at));
        Arc::new(TagRules {
            prefixes: Prefixes::new(prefixes),
            rules: self.written.iter().map(|(_, rule)| *rule).collect(),
            countings: self.countings,
        })
    }
}
