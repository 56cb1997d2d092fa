//! All configuration keys, one row each, section by section in the order of the guide.
//!
//! A new key is a row here and a field of its settings. What rows are for: `keys`. Combinations of
//! keys that do not work together are reported in `section`.

pub mod queue;

use crate::keys::SectionTable;

/// Every section that has a table, by its path.
pub const SECTIONS: [&SectionTable; 1] = [&queue::TABLE];
