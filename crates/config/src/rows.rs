//! All configuration keys, one row each, section by section in the order of the guide.
//!
//! A new key is a row here and a field of its settings. What rows are for: `keys`. Combinations of
//! keys that do not work together are reported in `section`.

pub(crate) mod bounds;
pub(crate) mod check;
pub(crate) mod common;
pub(crate) mod exports;
pub(crate) mod gatekeeper;
pub(crate) mod limits;
pub(crate) mod line;
pub(crate) mod master;
pub(crate) mod merge;
pub(crate) mod metrics;
pub(crate) mod peers;
pub(crate) mod proxy;
pub(crate) mod queue;
pub(crate) mod ratelimit;
pub(crate) mod rlqs;
pub(crate) mod root;
pub(crate) mod store;
pub(crate) mod timeouts;
pub(crate) mod tls;
pub(crate) mod xds;

use crate::keys::SectionTable;

/// The sections of a file.
pub const ROOT: &SectionTable = &root::TABLE;

/// Every section, in the order of the file; one that several sections share is there once.
#[must_use]
pub fn sections() -> Vec<&'static SectionTable> {
    let mut all = vec![ROOT];
    let mut at = 0;
    while let Some(table) = all.get(at).copied() {
        let inner = table.keys.iter().filter_map(|row| row.section()).map(|key| key.table);
        let new: Vec<_> =
            inner.filter(|one| all.iter().all(|old| !std::ptr::eq(*old, *one))).collect();
        for table in new {
            if all.iter().all(|old| !std::ptr::eq(*old, table)) {
                all.push(table);
            }
        }
        at += 1;
    }
    all
}
