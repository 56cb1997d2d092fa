//! Tickets and passes: what a visitor of a crowded site has waited, signed and kept in a cookie.
//!
//! A ticket says when its visitor first came. The waiting page sets it, and it is good for one page
//! within ten minutes. The answer to a ticket sets a pass: its visitor has waited and is good for
//! some hours, from the networks that the pass names. Both carry all of their state, so a million
//! waiting visitors take no memory, and all instances with the same key accept them.
//!
//! This module reads no clock and draws no random numbers. Which visitor is next, the queue decides
//! (`evenkeel_core::queue`). The bytes: `visit/token.rs`. The keys: `visit/keys.rs`.
//! The cookie: `visit/cookie.rs`. The page: `waiting_page`.

pub mod cookie;
mod keys;
mod networks;
mod proof;
mod token;

pub use evenkeel_core::queue::standing::TICKET_AGE_MAX;
pub use keys::VisitKeys;
pub use networks::{MOVES_MAX, PassNetworks};
pub use proof::{CLOCK_SKEW_MAX, PASS_AGE_MAX, PassProof, VisitProof};
pub use token::TOKEN_BYTES_MAX;

#[cfg(test)]
mod tests;
