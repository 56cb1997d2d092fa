//! The requests of unknown cost that go first: a few, so that their cost is soon known.
//!
//! Otherwise a light request waits for heavy ones because both are unknown, and its route stays
//! unknown for as long. The number is bounded in virtual time: a swarm that asks for an unknown
//! route each time delays all others no more than so many further members would. The virtual time
//! is that of `turns`, or in `lines` the time itself.

use super::turns::Tag;

/// The number of requests of unknown cost that go first in each round, that is, while the virtual
/// time advances by the length of one. Too low: after a start, light requests wait for heavy ones
/// because both are unknown. Too high: a swarm that asks for an unknown route each time delays all
/// others.
const FREE_GUESSES: Tag = 8;

/// The finish tag of the requests that went first, as if [`FREE_GUESSES`] members had sent them in
/// turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreeGuesses(Tag);

impl FreeGuesses {
    /// Whether a request of unknown cost that begins to wait at the virtual time `at` goes first;
    /// `length`: what it is expected to add to a tag.
    pub fn admits(&mut self, at: Tag, length: Tag) -> bool {
        let is_free = self.0 < at.saturating_add(length);
        if is_free {
            self.0 = self.0.max(at).saturating_add(length.div_ceil(FREE_GUESSES));
        }
        is_free
    }
}
