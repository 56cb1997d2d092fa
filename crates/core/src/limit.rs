//! A limit: its key, its condition, its algorithm, and its action for a client over the limit.
//!
//! [`Limit::checked`] reports all errors of a limit at once; later decisions cannot fail. See
//! `classify` for the key of a request under a limit, and `bucket` for the arithmetic.

use crate::bucket::Algorithm;
use crate::condition::Condition;
use crate::fact::ClientFact;
use crate::units::{Cost, Weight};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's network: the first `v4` bits of an IPv4 address, or `v6` bits of an IPv6
    /// address.
    Ip {
        /// Prefix length for IPv4, from 0 to 32.
        v4: u8,
        /// Prefix length for IPv6, from 0 to 128.
        v6: u8,
    },
    /// The `User-Agent` header; an absent one counts as empty.
    UserAgent,
    /// The first value of a header, by its lower-case name; an absent one counts as empty.
    Header(Box<str>),
    /// The value of a cookie; an absent one counts as empty.
    Cookie(Box<str>),
    /// The API key in `Authorization`, `X-Api-Key` or `Api-Key`; an absent one counts as empty.
    ApiKey,
    /// The value at this JSON pointer in the body; an absent one counts as empty.
    Json(Box<str>),
    /// The request's method.
    Method,
    /// The path without its query, or only this number of its first segments.
    Path(Option<u8>),
    /// The host that the request names, in lower case and without a port.
    Vhost,
    /// The client's confirmed name if a merge pattern gives one, else its address.
    Host,
    /// A fact about the client or its connection; an absent one counts as empty.
    Fact(ClientFact),
    /// An empty part: all requests share one bucket.
    All,
    /// The tag that a door was asked about. A request has no tag, which counts as empty.
    Tag,
}

/// The quantity that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitUnit {
    /// CPU time, known after the request ends.
    Cpu,
    /// Requests, known when they arrive.
    Hits,
    /// Tokens of language models, estimated when a request arrives and known after it ends.
    Tokens,
    /// Money that tokens of language models cost, known when the tokens are.
    Money,
}

/// The cost of a request in the units that limits count. A request has one hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCosts {
    /// CPU time, or weighted tokens. The queue shares this out.
    pub work: Cost,
    /// Tokens of language models, of the prompt and the output alike.
    pub tokens: Cost,
    /// Money: one unit of the currency is 10^9.
    pub money: Cost,
}

impl UnitCosts {
    /// The cost in one unit.
    #[must_use]
    pub const fn of(self, unit: LimitUnit) -> Cost {
        match unit {
            LimitUnit::Cpu => self.work,
            LimitUnit::Hits => Cost::hits(1),
            LimitUnit::Tokens => self.tokens,
            LimitUnit::Money => self.money,
        }
    }

    /// The sum in each unit, saturating.
    #[must_use]
    pub const fn plus(self, other: UnitCosts) -> UnitCosts {
        UnitCosts {
            work: self.work.plus(other.work),
            tokens: self.tokens.plus(other.tokens),
            money: self.money.plus(other.money),
        }
    }

    /// The cost of this number of tokens, if `self` is the cost of a thousand.
    #[must_use]
    pub fn for_tokens(self, tokens: Cost) -> UnitCosts {
        let part = |cost: Cost| {
            let scaled = u128::from(cost.0) * u128::from(tokens.0) / u128::from(Cost::hits(1).0);
            Cost(u64::try_from(scaled).unwrap_or(u64::MAX))
        };
        UnitCosts { work: part(self.work), tokens: part(self.tokens), money: part(self.money) }
    }

    /// The greater cost in each unit.
    #[must_use]
    pub fn max(self, other: UnitCosts) -> UnitCosts {
        UnitCosts {
            work: self.work.max(other.work),
            tokens: self.tokens.max(other.tokens),
            money: self.money.max(other.money),
        }
    }
}

impl From<Cost> for UnitCosts {
    /// Work without a language model.
    fn from(work: Cost) -> UnitCosts {
        UnitCosts { work, ..UnitCosts::default() }
    }
}

/// The treatment of a client in debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAction {
    /// The request runs, and the head of its response is held until the debt is paid.
    Hold,
    /// The request waits before it is sent to the backend.
    Delay,
    /// The request is refused.
    Reject,
    /// While the backend is busy, the request waits behind the requests of clients in credit
    /// (`queue`).
    Queue,
}

impl LimitAction {
    /// The name in the configuration and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LimitAction::Hold => "hold",
            LimitAction::Delay => "delay",
            LimitAction::Reject => "reject",
            LimitAction::Queue => "queue",
        }
    }
}

impl fmt::Display for LimitAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// A rule denies such requests. Asking again does not help.
    Denied,
    /// The client has sent too many requests.
    OverRate,
    /// Its requests cost too much, or there is no room.
    Busy,
}

/// A rule: its key, its algorithm and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The name given by the operator; unique within a door.
    pub name: Box<str>,
    /// The parts of the key.
    pub by: Vec<KeyPart>,
    /// The condition under which the limit applies.
    pub when: Condition,
    /// The quantity that it counts.
    pub unit: LimitUnit,
    /// The algorithm by which it counts.
    pub algorithm: Algorithm,
    /// The action for a client over the limit. `None` means `Reject` for windows and for all
    /// units but CPU time, and the action of the door otherwise.
    pub action: Option<LimitAction>,
    /// Share of a matching request relative to others in the admission queue; the weights of all
    /// limits of a request are multiplied. Too low: its users wait for all other users. Too high:
    /// all other users wait for them.
    pub weight: Weight,
    /// The maximum number of keys to remember. Too low: the smallest debts are forgiven early. Too
    /// high: memory, about 24 bytes a key (more for windows).
    pub keys_max: usize,
    /// Whether the limit runs in shadow mode: it decides and counts as usual, but delays or refuses
    /// no request. A request that it would have refused is not counted, as if it had been refused.
    pub shadow: bool,
}

/// The maximum number of limits of a door.
pub const LIMITS_MAX: usize = 32;
/// The maximum number of keys that a limit can remember.
pub const KEYS_MAX: usize = 1 << 28;
/// The maximum number of parts of a key.
pub const PARTS_MAX: usize = 8;

const _: () = {
    assert!(PARTS_MAX == 8, "LimitError::Parts names the number");
    assert!(KEYS_MAX == 268_435_456, "LimitError::Keys names the number");
};

/// An invalid setting of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The limit has no name.
    Name,
    /// The key has no parts, or more than [`PARTS_MAX`].
    Parts,
    /// A prefix is longer than the address.
    Prefix,
    /// The burst of a rate limit is so small that no request could ever pass.
    Burst,
    /// The number of keys is zero or more than [`KEYS_MAX`].
    Keys,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitError::Name => "a limit needs a name",
            LimitError::Parts => {
                "a limit counts by one to eight properties; `all` counts all clients together"
            }
            LimitError::Prefix => "an IPv4 prefix has at most 32 bits, an IPv6 prefix 128",
            LimitError::Burst => "`burst` must be at least 1; otherwise no request could pass",
            LimitError::Keys => "`keys_max` must be from 1 to 268435456",
        })
    }
}

impl Limit {
    /// Checks the limit and reports all errors at once.
    ///
    /// # Errors
    /// Every [`LimitError`] found.
    pub fn checked(self) -> Result<Limit, Vec<LimitError>> {
        let long = |part: &KeyPart| matches!(part, KeyPart::Ip { v4, v6 } if *v4 > 32 || *v6 > 128);
        let starved = match (&self.algorithm, self.unit) {
            (Algorithm::Debt(debt), LimitUnit::Hits) => debt.burst() < Cost::hits(1),
            (Algorithm::Grid(grid), _) => grid.burst() < 1,
            _ => false,
        };
        let faults: Vec<LimitError> = [
            (self.name.is_empty(), LimitError::Name),
            (self.by.is_empty() || self.by.len() > PARTS_MAX, LimitError::Parts),
            (self.by.iter().any(long), LimitError::Prefix),
            (starved, LimitError::Burst),
            (self.keys_max == 0 || self.keys_max > KEYS_MAX, LimitError::Keys),
        ]
        .into_iter()
        .filter_map(|(wrong, fault)| wrong.then_some(fault))
        .collect();
        if faults.is_empty() { Ok(self) } else { Err(faults) }
    }

    /// The action at a door with the default action `door`.
    #[must_use]
    pub fn action(&self, door: LimitAction) -> LimitAction {
        let refuses = self.unit != LimitUnit::Cpu || !matches!(self.algorithm, Algorithm::Debt(_));
        self.action.unwrap_or(if refuses { LimitAction::Reject } else { door })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::debt::DebtBucket;
    use crate::bucket::fixed::FixedWindow;
    use crate::units::{Nanos, Rate};
    use alloc::vec;
    use std::string::ToString;

    fn debt(burst: Cost) -> Algorithm {
        let rate = Rate::per(Cost::hits(5), Nanos::from_secs(60)).expect("a rate");
        Algorithm::Debt(DebtBucket::new(rate, burst))
    }

    fn limit() -> Limit {
        Limit {
            name: "logins".into(),
            by: vec![KeyPart::Ip { v4: 32, v6: 64 }],
            when: Condition::default(),
            unit: LimitUnit::Hits,
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
            by: vec![KeyPart::Ip { v4: 32, v6: 128 }; PARTS_MAX],
            keys_max: KEYS_MAX,
            ..limit()
        };
        assert!(widest.checked().is_ok());
        let whole_world = Limit { by: vec![KeyPart::Ip { v4: 0, v6: 0 }], keys_max: 1, ..limit() };
        assert!(whole_world.checked().is_ok());
    }

    #[test]
    fn each_fault_is_found() {
        let prefix = |v4, v6| vec![KeyPart::Method, KeyPart::Ip { v4, v6 }];
        for (faulty, fault) in [
            (Limit { name: "".into(), ..limit() }, LimitError::Name),
            (Limit { by: vec![], ..limit() }, LimitError::Parts),
            (Limit { by: vec![KeyPart::All; PARTS_MAX + 1], ..limit() }, LimitError::Parts),
            (Limit { by: prefix(33, 64), ..limit() }, LimitError::Prefix),
            (Limit { by: prefix(32, 129), ..limit() }, LimitError::Prefix),
            (Limit { algorithm: debt(Cost(999_999_999)), ..limit() }, LimitError::Burst),
            (Limit { keys_max: 0, ..limit() }, LimitError::Keys),
            (Limit { keys_max: KEYS_MAX + 1, ..limit() }, LimitError::Keys),
        ] {
            assert_eq!(faulty.checked(), Err(vec![fault]), "{fault}");
        }
    }

    #[test]
    fn all_faults_are_found_at_once() {
        let faulty = Limit { name: "".into(), by: vec![], keys_max: 0, ..limit() };
        assert_eq!(
            faulty.checked(),
            Err(vec![LimitError::Name, LimitError::Parts, LimitError::Keys])
        );
    }

    #[test]
    fn only_hits_need_a_burst_of_one() {
        let cpu = Limit { unit: LimitUnit::Cpu, algorithm: debt(Cost::ZERO), ..limit() };
        assert!(cpu.checked().is_ok());
    }

    #[test]
    fn the_door_decides_what_happens_to_cpu_time_alone() {
        let window = Algorithm::Fixed(FixedWindow::new(1, 1).expect("a window"));
        for door in [LimitAction::Hold, LimitAction::Delay, LimitAction::Reject] {
            let cpu = Limit { unit: LimitUnit::Cpu, ..limit() };
            assert_eq!(cpu.action(door), door);
            assert_eq!(limit().action(door), LimitAction::Reject);
            let in_windows = Limit { unit: LimitUnit::Cpu, algorithm: window.clone(), ..limit() };
            assert_eq!(in_windows.action(door), LimitAction::Reject);
            let named = Limit { action: Some(LimitAction::Delay), ..limit() };
            assert_eq!(named.action(door), LimitAction::Delay);
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_the_words_of_the_configuration() {
        assert!(LimitError::Keys.to_string().contains(&KEYS_MAX.to_string()));
        assert!(LimitError::Burst.to_string().contains("`burst`"));
        assert_eq!(LimitAction::Hold.to_string(), "hold");
    }
}
