//! The description of a limit that several instances count together.
//!
//! The decisions of the limit are not known here. A description is sent in `content`.

use crate::units::Cost;
use alloc::boxed::Box;

/// A limit that is counted together with other instances.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicatedLimit {
    /// Fingerprint of everything that must be equal: what the limit counts, by which key, in which
    /// unit.
    pub fingerprint: u64,
    /// The name of the limit.
    pub name: Box<str>,
    /// The parameters in readable form. Where they differ, sums are right and verdicts differ.
    pub numbers: Box<str>,
    /// Amounts are reported in multiples of this number of nano-units, at least 1. A remainder is
    /// kept for a later report.
    pub unit: u64,
    /// Cost that the limit lets pass in a second. Keys with a far smaller unreported amount are
    /// held back. Zero: no key is held back.
    pub per_second: Cost,
}
