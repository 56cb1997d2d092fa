//! A condition on a request: clauses about its attributes, negations, alternatives and groups.
//!
//! Backends may read a request in several ways, so a clause has three results ([`Truth`]): limits
//! and denials apply if a condition may hold; exemptions and greater weights need one that holds in
//! every reading. How an attribute is read: `classify`. How texts are compared: `patterns`.

mod addresses;
pub mod patterns;

use crate::fact::{ClientFact, FactSet};
pub use addresses::AddressSet;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use patterns::{PathPatterns, Patterns};

/// The maximum number of groups of a configuration.
pub const GROUPS_MAX: usize = 64;
/// The maximum number of clauses of a group, with those of the groups that it names, each as often
/// as it is named. Otherwise forty groups that each name the one before twice would never be read.
pub const GROUP_CLAUSES_MAX: usize = 4_096;

/// Whether a condition holds for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// In no reading of the request.
    No,
    /// In the reading of some backends.
    Maybe,
    /// In every reading.
    Yes,
}

impl Truth {
    /// The truth of what every reading agrees on.
    #[must_use]
    pub const fn of(holds: bool) -> Truth {
        if holds { Truth::Yes } else { Truth::No }
    }

    /// The truth of the opposite.
    #[must_use]
    pub const fn not(self) -> Truth {
        match self {
            Truth::No => Truth::Yes,
            Truth::Maybe => Truth::Maybe,
            Truth::Yes => Truth::No,
        }
    }
}

/// A condition. All of its clauses must hold; without clauses it always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// The clauses, in the order in which they are examined.
    pub clauses: Vec<Clause>,
}

/// One clause of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clause {
    /// The method matches.
    Method(Patterns),
    /// The path, or one that it lies below, matches.
    Path(PathPatterns),
    /// The host that the request names matches, without its port.
    Vhost(Patterns),
    /// Values of a header, by its lower-case name.
    Header(Box<str>, Values),
    /// Values of a cookie.
    Cookie(Box<str>, Values),
    /// Values of a parameter of the query.
    Query(Box<str>, Values),
    /// A fact about the client.
    Fact(ClientFact, Values),
    /// The client's address is in the set.
    Address(AddressSet),
    /// The client's address is in one of the lists with these names, which are outside of the core.
    Listed(Vec<Box<str>>),
    /// The request belongs to the group.
    Group(Arc<Group>),
    /// The condition does not hold.
    Not(Condition),
    /// One of the conditions holds.
    Any(Vec<Condition>),
}

/// The values of an attribute that may be absent or occur several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// Whether the clause holds if the attribute is absent.
    pub absent: bool,
    /// The patterns of a value.
    pub patterns: Patterns,
}

impl Values {
    /// Any value.
    #[must_use]
    pub fn present() -> Values {
        Values { absent: false, patterns: Patterns::any() }
    }

    /// No value.
    #[must_use]
    pub fn absent() -> Values {
        Values { absent: true, patterns: Patterns::default() }
    }

    /// Whether the values of an attribute match. If only some of several values match, backends
    /// differ in which one they use.
    pub fn hold(&self, mut values: impl Iterator<Item = impl AsRef<[u8]>>) -> Truth {
        let Some(first) = values.next() else { return Truth::of(self.absent) };
        let matches = self.patterns.matches(first.as_ref());
        match values.any(|value| self.patterns.matches(value.as_ref()) != matches) {
            true => Truth::Maybe,
            false => Truth::of(matches),
        }
    }
}

/// A condition with a name, which limits and other rules share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name in the configuration.
    pub name: Box<str>,
    /// Index among all groups, less than [`GROUPS_MAX`]. Whether a request belongs to the group is
    /// examined once.
    pub index: u8,
    /// The requests that belong to the group.
    pub condition: Condition,
    /// The number of its clauses, with those of the groups that it names.
    clauses: usize,
}

impl Group {
    /// A group; `None` if it has more than [`GROUP_CLAUSES_MAX`] clauses.
    #[must_use]
    pub fn new(name: Box<str>, index: u8, condition: Condition) -> Option<Group> {
        let clauses = condition.clauses_in_all();
        (clauses <= GROUP_CLAUSES_MAX).then_some(Group { name, index, condition, clauses })
    }
}

impl Clause {
    /// The request has this header, by its lower-case name.
    #[must_use]
    pub fn has_header(name: &str) -> Clause {
        Clause::Header(name.into(), Values::present())
    }

    /// The request has this cookie.
    #[must_use]
    pub fn has_cookie(name: &str) -> Clause {
        Clause::Cookie(name.into(), Values::present())
    }
}

impl From<Clause> for Condition {
    fn from(clause: Clause) -> Condition {
        Condition { clauses: alloc::vec![clause] }
    }
}

impl Condition {
    /// Adds a clause.
    #[must_use]
    pub fn and(mut self, clause: Clause) -> Condition {
        self.clauses.push(clause);
        self
    }

    /// Whether the condition has no clauses and always holds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clauses.is_empty()
    }

    /// The number of clauses, with those of inner conditions and groups.
    fn clauses_in_all(&self) -> usize {
        let of = |clause: &Clause| match clause {
            Clause::Not(inner) => 1 + inner.clauses_in_all(),
            Clause::Any(all) => 1 + all.iter().map(Condition::clauses_in_all).sum::<usize>(),
            Clause::Group(group) => 1 + group.clauses,
            _ => 1,
        };
        self.clauses.iter().map(of).sum()
    }

    /// Calls `visit` for each clause, also for those of inner conditions and groups.
    pub fn for_each(&self, visit: &mut impl FnMut(&Clause)) {
        for clause in &self.clauses {
            visit(clause);
            match clause {
                Clause::Not(inner) => inner.for_each(visit),
                Clause::Any(all) => all.iter().for_each(|inner| inner.for_each(visit)),
                Clause::Group(group) => group.condition.for_each(visit),
                _ => {}
            }
        }
    }

    /// The facts that the condition names.
    #[must_use]
    pub fn facts(&self) -> FactSet {
        let mut facts = FactSet::default();
        self.for_each(&mut |clause| {
            if let Clause::Fact(fact, _) = clause {
                facts.insert(*fact);
            }
        });
        facts
    }

    /// The names of the address lists that the condition needs, in the order of its clauses.
    #[must_use]
    pub fn lists(&self) -> Vec<Box<str>> {
        let mut lists = Vec::new();
        self.for_each(&mut |clause| {
            if let Clause::Listed(names) = clause {
                lists.extend_from_slice(names);
            }
        });
        lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_differ_hold_in_some_readings() {
        let of =
            |values: &Values, all: &[&str]| values.hold(all.iter().map(|text| text.as_bytes()));
        let edit = Values { absent: false, patterns: Patterns::new(["edit"]).expect("patterns") };
        assert_eq!(of(&edit, &[]), Truth::No);
        assert_eq!(of(&edit, &["edit"]), Truth::Yes);
        assert_eq!(of(&edit, &["edit", "EDIT"]), Truth::Yes);
        assert_eq!(of(&edit, &["view", "edit"]), Truth::Maybe);
        assert_eq!(of(&edit, &["edit", "view"]), Truth::Maybe);
        assert_eq!(of(&edit, &["view", "view"]), Truth::No);
        assert_eq!(of(&Values::present(), &["", "x"]), Truth::Yes);
        assert_eq!(of(&Values::present(), &[]), Truth::No);
        assert_eq!(of(&Values::absent(), &[]), Truth::Yes);
        assert_eq!(of(&Values::absent(), &["x"]), Truth::No);
    }

    #[test]
    fn what_is_doubtful_stays_so_in_its_opposite() {
        assert_eq!(Truth::Yes.not(), Truth::No);
        assert_eq!(Truth::No.not(), Truth::Yes);
        assert_eq!(Truth::Maybe.not(), Truth::Maybe);
    }
}
