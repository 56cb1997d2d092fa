//! The names with which clients identify themselves: each name once, with a number.
//!
//! The length of a name and the number of names are bounded. Names beyond the bound and absent
//! names share one number.

use foldhash::fast::RandomState;
use std::collections::HashMap;

/// The maximum number of names; all further names share one number.
const AGENTS_MAX: usize = 50_000;
/// The maximum length of a name in bytes; the rest is ignored.
const NAME_BYTES_MAX: usize = 300;

/// The number of all names beyond the bound, and of absent names.
const OTHERS_NUMBER: u32 = 0;

/// The names and their numbers.
pub struct AgentNames {
    numbers: HashMap<Box<str>, u32, RandomState>,
    names: Vec<Box<str>>,
}

impl Default for AgentNames {
    /// Makes a table without names.
    fn default() -> AgentNames {
        AgentNames { numbers: HashMap::default(), names: vec!["".into()] }
    }
}

impl AgentNames {
    /// The number of a name, which is added if it is new.
    pub fn number(&mut self, name: &str) -> u32 {
        let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
        let name = &name[..end.unwrap_or(0)];
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        if name.is_empty() || self.names.len() >= AGENTS_MAX {
            return OTHERS_NUMBER;
        }
        let number = self.names.len() as u32;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        number
    }

    /// The name with a number; empty if there is none.
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", |name| name)
    }
}
