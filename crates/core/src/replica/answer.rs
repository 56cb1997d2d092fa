//! The answer of a peer to a request for its state, as far as it has arrived.
//!
//! It begins with the list of the reports that the state contains. From it follow the charges of
//! this instance that the state does not contain: those are added to it, because a bucket that
//! both have charged is short of the sum.

use super::content::{FrameContent, StateAnswerPart};
use super::log::ResendLog;
use super::unsent::UnsentCharges;
use super::window::SequenceWindow;
use super::wire::PeerFrameSender;
use crate::key::KeyHash;
use alloc::vec::Vec;

/// The maximum number of parts of the list, and of the state.
const PARTS_MAX: u64 = 128;

/// For each sender, the reports that a state contains.
pub type ContainedReports = Vec<(PeerFrameSender, SequenceWindow)>;

/// The parts of an answer that have arrived.
#[derive(Default)]
pub struct StateAnswer {
    /// The number of the answer; zero before its first part.
    number: u64,
    /// A bit for each part of the list that has arrived; all bits set means complete.
    listed: u128,
    /// The list, until the state begins to arrive.
    contained: ContainedReports,
    /// The reports of this instance that the state contains.
    own: SequenceWindow,
    /// Whether the buckets here may have charges of the state that are not in these reports.
    may_overlap: bool,
    /// The number of the next report of this instance to add up.
    next: u64,
    /// The sums of the charges that the state does not contain.
    apart: UnsentCharges,
}

impl StateAnswer {
    /// An answer before its first part. `may_overlap`: the buckets have charges that are not in
    /// reports of this instance, and which the state may contain.
    pub fn new(may_overlap: bool) -> StateAnswer {
        StateAnswer { may_overlap, ..StateAnswer::default() }
    }

    /// Adds a part of the list.
    pub fn add_list(&mut self, part: StateAnswerPart, contained: ContainedReports) {
        if part.parts > PARTS_MAX {
            return;
        }
        if self.number != part.number {
            let unused = u128::MAX.checked_shl(part.parts as u32).unwrap_or(0);
            let empty = StateAnswer::new(self.may_overlap);
            *self = StateAnswer { number: part.number, listed: unused, ..empty };
        }
        let bit = 1_u128.checked_shl(part.part as u32).unwrap_or(0);
        if self.listed & bit == 0 {
            self.listed |= bit;
            self.contained.extend(contained);
        }
    }

    /// Whether the list is complete to which this part of the state belongs. If it is not, the part
    /// is refused: the missing reports would be charged again when they arrive.
    pub fn is_listed(&self, part: StateAnswerPart) -> bool {
        self.number == part.number && self.listed == u128::MAX && part.parts <= PARTS_MAX
    }

    /// Returns the list once, when the state begins to arrive. `own`: this instance.
    pub fn take_list(&mut self, own: PeerFrameSender) -> ContainedReports {
        let list = core::mem::take(&mut self.contained);
        list.iter().filter(|(of, _)| *of == own).for_each(|(_, window)| self.own.join(window));
        list
    }

    /// Adds up the reports of the log that the state does not contain and that were not added
    /// before. `limit` returns the index of the limit with a fingerprint, and its unit. Charges of
    /// further keys are left out when there is no room.
    pub fn add_reports(&mut self, log: &ResendLog, limit: impl Fn(u64) -> Option<(usize, u64)>) {
        for sent in log.since(self.next) {
            self.next = sent.number + 1;
            if self.own.has(sent.number) {
                continue;
            }
            let Ok((_, FrameContent::Report(report))) = FrameContent::read(&sent.frame) else {
                continue;
            };
            for entry in report.groups {
                let Some((limit, unit)) = limit(entry.limit) else { continue };
                let amount = entry.amount.saturating_mul(unit);
                self.apart.add(limit, entry.context, entry.key, amount, 0);
            }
        }
    }

    /// The reported charges of a bucket that the state does not contain, in nano-units: the sum of
    /// the added reports, or all, however old, if the state contains nothing of this instance.
    pub fn apart(&self, limit: usize, key: KeyHash) -> u64 {
        let none_contained = self.own == SequenceWindow::default() && !self.may_overlap;
        if none_contained { u64::MAX } else { self.apart.unsent(limit, 0, key) }
    }

    /// Forgets what was added up, because the limits have new indexes.
    pub fn restart_sums(&mut self) {
        (self.next, self.apart) = (0, UnsentCharges::default());
    }
}
