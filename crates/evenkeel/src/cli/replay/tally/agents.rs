//! What clients call themselves: each name once, and a number for it.
//!
//! Names are cut to a bound, and so is their number; what comes after that, and no name at all, are
//! one.

use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Names that are kept; all that come after are one.
const AGENTS_MAX: usize = 50_000;
/// The longest part of a name that is looked at, in bytes.
const BYTES_MAX: usize = 300;

/// The number of all names beyond those that are kept, and of none.
const OTHERS: u32 = 0;

/// The names.
pub struct Agents {
    numbers: HashMap<Box<str>, u32, RandomState>,
    names: Vec<Box<str>>,
}

impl Default for Agents {
    /// None yet.
    fn default() -> Agents {
        Agents { numbers: HashMap::default(), names: vec!["".into()] }
    }
}

impl Agents {
    /// The number of a name.
    pub fn number(&mut self, name: &str) -> u32 {
        let end = (0..=BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
        let name = &name[..end.unwrap_or(0)];
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        if name.is_empty() || self.names.len() >= AGENTS_MAX {
            return OTHERS;
        }
        let number = self.names.len() as u32;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        number
    }

    /// The name of a number; empty where there is none.
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", |name| name)
    }
}
