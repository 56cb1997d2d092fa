//! A limit: what it counts by, when it applies, how it counts, what happens to whoever is over it.
//!
//! Building one checks it, and says everything that is wrong at once; deciding by it later cannot
//! fail. What a request's key is under a limit: `classify`. The arithmetic: `bucket`.

use crate::bucket::Algorithm;
use crate::units::Weight;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The client's network: the first `v4` bits of an IPv4 address, `v6` of an IPv6 one.
    Ip {
        /// 0 to 32.
        v4: u8,
        /// 0 to 128.
        v6: u8,
    },
    /// The `User-Agent` header; absent counts as empty.
    UserAgent,
    /// The first value of a header, by lower-case name; absent counts as empty.
    Header(Box<str>),
    /// A cookie's value; absent counts as empty.
    Cookie(Box<str>),
    /// The method.
    Method,
    /// The path without its query, or only its first segments.
    Path(Option<u8>),
    /// The host that the request names, lower case, without a port.
    Vhost,
    /// The client's confirmed name where a merge pattern gives one, else its address.
    Host,
    /// Nothing: all requests share one bucket.
    All,
    /// The tag that a door was asked about; a request has none, which counts as empty.
    Tag,
}

/// When a limit applies. Everything named must hold; an empty condition always does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// One of these methods.
    pub method: Vec<Box<str>>,
    /// One of these paths or what lies below it: `/login` is also `/login/x`, not `/loginx`.
    pub path: Vec<Box<str>>,
    /// One of these hosts, lower case, without a port.
    pub vhost: Vec<Box<str>>,
    /// All of these headers are there, by lower-case name.
    pub header: Vec<Box<str>>,
    /// All of these cookies are there.
    pub cookie: Vec<Box<str>>,
    /// This does not hold.
    pub not: Option<Box<When>>,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// CPU time, known when the request is over.
    Cpu,
    /// Requests, known when they come.
    Hits,
}

/// What happens to a client in debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request runs; the head of its answer is held until the debt is paid.
    Hold,
    /// The request waits before the backend sees it.
    Delay,
    /// The request is refused.
    Reject,
    /// The request waits while the backend is busy, behind those in credit (`queue`).
    Queue,
}

impl Action {
    /// As it is written in the configuration and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Action::Hold => "hold",
            Action::Delay => "delay",
            Action::Reject => "reject",
            Action::Queue => "queue",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rule: which key, which algorithm, which numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// What people call it; unique within a door.
    pub name: Box<str>,
    /// What it counts by.
    pub by: Vec<Part>,
    /// When it applies.
    pub when: When,
    /// What it counts.
    pub unit: Unit,
    /// How it counts.
    pub algorithm: Algorithm,
    /// What happens over it; `None`: `Reject` for hits and windows, else what the door says.
    pub action: Option<Action>,
    /// How much more (or less) than others whoever it applies to gets where requests queue; the
    /// weights of all limits of a request are multiplied. Too low: its users wait for everybody
    /// else. Too high: everybody else waits for them.
    pub weight: Weight,
    /// How many keys it remembers, at most. Too low: debts of the least indebted are forgiven
    /// early. Too high: memory, some 24 bytes a key (more for windows).
    pub keys_max: usize,
    /// Whether it only says what it would do: it decides and counts like any other, and its word
    /// keeps nobody. What it would have refused it does not count, as if it had.
    pub shadow: bool,
}

/// The most limits one door can have.
pub const LIMITS_MAX: usize = 32;
/// The most keys one limit can remember.
pub const KEYS_MAX: usize = 1 << 28;
/// The most parts a key can have.
pub const PARTS_MAX: usize = 8;

/// What is wrong with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has no name.
    Name,
    /// It counts by nothing, or by more than [`PARTS_MAX`] things.
    Parts,
    /// A prefix longer than the address.
    Prefix,
    /// A rate limit that could never let a single request pass.
    Burst,
    /// No keys, or more than [`KEYS_MAX`].
    Keys,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Name => "a limit needs a name",
            Fault::Parts => {
                "a limit counts by one to eight things; `all` counts everybody together"
            }
            Fault::Prefix => "an IPv4 prefix has at most 32 bits, an IPv6 prefix 128",
            Fault::Burst => "`burst` must be at least 1, or no request could ever pass",
            Fault::Keys => "`keys_max` must be from 1 to 268435456",
        })
    }
}

impl Limit {
    /// Checks the limit; all faults at once.
    ///
    /// # Errors
    /// Every [`Fault`] found.
    pub fn checked(self) -> Result<Limit, Vec<Fault>> {
        let long = |part: &Part| matches!(part, Part::Ip { v4, v6 } if *v4 > 32 || *v6 > 128);
        let starved = match (&self.algorithm, self.unit) {
            (Algorithm::Debt(debt), Unit::Hits) => debt.burst() < crate::units::Cost::hits(1),
            (Algorithm::Grid(grid), _) => grid.burst() < 1,
            _ => false,
        };
        let faults: Vec<Fault> = [
            (self.name.is_empty(), Fault::Name),
            (self.by.is_empty() || self.by.len() > PARTS_MAX, Fault::Parts),
            (self.by.iter().any(long), Fault::Prefix),
            (starved, Fault::Burst),
            (self.keys_max == 0 || self.keys_max > KEYS_MAX, Fault::Keys),
        ]
        .into_iter()
        .filter_map(|(wrong, fault)| wrong.then_some(fault))
        .collect();
        if faults.is_empty() { Ok(self) } else { Err(faults) }
    }

    /// What happens over this limit at a door whose action is `door`.
    #[must_use]
    pub fn action(&self, door: Action) -> Action {
        let refuses = self.unit == Unit::Hits || !matches!(self.algorithm, Algorithm::Debt(_));
        self.action.unwrap_or(if refuses { Action::Reject } else { door })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::debt::Debt;
    use crate::bucket::fixed::Fixed;
    use crate::units::{Cost, Nanos, Rate};
    use alloc::vec;
    use std::string::ToString;

    fn debt(burst: Cost) -> Algorithm {
        let rate = Rate::per(Cost::hits(5), Nanos::from_secs(60)).expect("a rate");
        Algorithm::Debt(Debt::new(rate, burst))
    }

    fn limit() -> Limit {
        Limit {
            name: "logins".into(),
            by: vec![Part::Ip { v4: 32, v6: 64 }],
            when: When::default(),
            unit: Unit::Hits,
            algorithm: debt(Cost::hits(1)),
            action: None,
            weight: Weight::ONE,
            keys_max: 1_000,
            shadow: false,
        }
    }

    #[test]
    fn a_sound_limit_is_as_it_was_written() {
        assert_eq!(limit().checked(), Ok(limit()));
        let widest = Limit {
            by: vec![Part::Ip { v4: 32, v6: 128 }; PARTS_MAX],
            keys_max: KEYS_MAX,
            ..limit()
        };
        assert!(widest.checked().is_ok());
        let whole_world = Limit { by: vec![Part::Ip { v4: 0, v6: 0 }], keys_max: 1, ..limit() };
        assert!(whole_world.checked().is_ok());
    }

    #[test]
    fn each_fault_is_found() {
        let prefix = |v4, v6| vec![Part::Method, Part::Ip { v4, v6 }];
        for (faulty, fault) in [
            (Limit { name: "".into(), ..limit() }, Fault::Name),
            (Limit { by: vec![], ..limit() }, Fault::Parts),
            (Limit { by: vec![Part::All; PARTS_MAX + 1], ..limit() }, Fault::Parts),
            (Limit { by: prefix(33, 64), ..limit() }, Fault::Prefix),
            (Limit { by: prefix(32, 129), ..limit() }, Fault::Prefix),
            (Limit { algorithm: debt(Cost(999_999_999)), ..limit() }, Fault::Burst),
            (Limit { keys_max: 0, ..limit() }, Fault::Keys),
            (Limit { keys_max: KEYS_MAX + 1, ..limit() }, Fault::Keys),
        ] {
            assert_eq!(faulty.checked(), Err(vec![fault]), "{fault}");
        }
    }

    #[test]
    fn all_faults_are_found_at_once() {
        let faulty = Limit { name: "".into(), by: vec![], keys_max: 0, ..limit() };
        assert_eq!(faulty.checked(), Err(vec![Fault::Name, Fault::Parts, Fault::Keys]));
    }

    #[test]
    fn only_hits_need_a_burst_of_one() {
        let cpu = Limit { unit: Unit::Cpu, algorithm: debt(Cost::ZERO), ..limit() };
        assert!(cpu.checked().is_ok());
    }

    #[test]
    fn the_door_decides_what_happens_to_cpu_time_alone() {
        let window = Algorithm::Fixed(Fixed::new(1, 1).expect("a window"));
        for door in [Action::Hold, Action::Delay, Action::Reject] {
            let cpu = Limit { unit: Unit::Cpu, ..limit() };
            assert_eq!(cpu.action(door), door);
            assert_eq!(limit().action(door), Action::Reject);
            let in_windows = Limit { unit: Unit::Cpu, algorithm: window.clone(), ..limit() };
            assert_eq!(in_windows.action(door), Action::Reject);
            let named = Limit { action: Some(Action::Delay), ..limit() };
            assert_eq!(named.action(door), Action::Delay);
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_the_words_of_the_configuration() {
        assert!(Fault::Keys.to_string().contains(&KEYS_MAX.to_string()));
        assert!(Fault::Burst.to_string().contains("`burst`"));
        assert_eq!(Action::Hold.to_string(), "hold");
    }
}
