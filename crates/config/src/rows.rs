//! All configuration keys, one row each, section by section in the order of the guide.
//!
//! The rows are in the files of their sections (`settings`); what they are for: `keys`. A new key
//! is a row there, and a field of its settings.

use crate::keys::SectionTable;

/// The sections of a file.
pub const ROOT: &SectionTable = &crate::settings::TABLE;

/// Every section, in the order of the file; one that several sections share is there once.
#[must_use]
pub fn sections() -> Vec<&'static SectionTable> {
    let mut all = vec![ROOT];
    let mut at = 0;
    while let Some(table) = all.get(at).copied() {
        for key in table.keys.iter().filter_map(|row| row.section()) {
            if all.iter().all(|old| !std::ptr::eq(*old, key.table)) {
                all.push(key.table);
            }
        }
        at += 1;
    }
    all
}
