//! The contents of a ticket or a pass, and its proof about the visitor that brings it.
//!
//! The bytes of a token: `token`. Its signature: `keys`. The networks of a pass: `networks`.

use super::networks::PassNetworks;
use evenkeel_core::queue::standing::{Visit, VisitPass, VisitTicket};
use evenkeel_core::units::{Nanos, Time};
use std::net::IpAddr;

/// The time for which a pass is good.
pub const PASS_AGE_MAX: Nanos = Nanos::from_secs(12 * 3_600);
/// How far a moment in a cookie may lie ahead: clocks of several instances differ.
pub const CLOCK_SKEW_MAX: Nanos = Nanos::from_secs(5);

/// A pass with the bounds of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassProof {
    /// The pass as the queue knows it.
    pub pass: VisitPass,
    /// When the ticket was served. A pass is good for [`PASS_AGE_MAX`] from then on.
    pub issued: Time,
    /// Where the pass is accepted.
    pub networks: PassNetworks,
}

/// A token with a valid signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitToken {
    Ticket(VisitTicket),
    Pass(PassProof),
}

/// The proof in the cookies of a request about its visitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VisitProof {
    /// No cookie, or one that is forged, damaged, too old or from another key.
    #[default]
    Nothing,
    /// The visitor has waited since the ticket's first moment.
    Ticket(VisitTicket),
    /// The visitor has been served before.
    Pass(VisitPass),
    /// The pass is good, but comes from a network that it does not name. It proves nothing yet. The
    /// waiting page may set this pass, which names the network and takes its place in line from
    /// now on.
    Moved(PassProof),
}

impl VisitProof {
    /// The form for the queue.
    #[must_use]
    pub fn visit(self) -> Visit {
        match self {
            VisitProof::Nothing | VisitProof::Moved(_) => Visit::Unknown,
            VisitProof::Ticket(ticket) => Visit::Ticket(ticket),
            VisitProof::Pass(pass) => Visit::Pass(pass),
        }
    }
}

impl PassProof {
    /// The pass of a visitor at `client` after its ticket is served at `now`.
    #[must_use]
    pub fn new(pass: VisitPass, client: IpAddr, now: Time) -> PassProof {
        PassProof { pass, issued: now, networks: PassNetworks::of(client) }
    }

    /// The pass of a visitor that comes from one more network. `None` after [`MOVES_MAX`] moves.
    pub(super) fn moved(self, network: u32, now: Time) -> Option<PassProof> {
        let networks = self.networks.with(network)?;
        let pass = VisitPass { stamp: self.pass.stamp.max(now), ..self.pass };
        Some(PassProof { pass, networks, ..self })
    }
}

/// Whether `moment` lies at most `age_max` back, and not ahead by more than clocks differ.
pub(super) fn is_recent(moment: Time, age_max: Nanos, now: Time) -> bool {
    now.since(moment) <= age_max && moment.since(now) <= CLOCK_SKEW_MAX
}
