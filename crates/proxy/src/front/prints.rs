//! Takes the fingerprints of a connection while its protocol is detected: JA4 from the first bytes
//! of TLS, and whether the handshake took longer than TCP's round trip explains.
//!
//! A connection of a trusted proxy has none: they would be the proxy's. Behind a front that speaks
//! the PROXY protocol, TCP ends at the front but TLS may end at the client, so only the round trips
//! are not compared. The fingerprint of HTTP/2 is read in `link/prints.rs`.

use super::sniffed::SniffedStream;
use super::tcp_info::{self, TcpTimes};
use crate::context::settings::ThreadSettings;
use crate::link::ClientLink;
use evenkeel_core::fact::ClientFact;
use evenkeel_identity::prints::rtt::RttVerdict;
use evenkeel_identity::prints::{PrintParse, ja4};

/// The fingerprints that a connection is asked for.
#[derive(Clone, Copy)]
pub(super) struct WantedPrints {
    pub(super) ja4: bool,
    pub(super) h2: bool,
    pub(super) rtt: bool,
}

impl WantedPrints {
    /// `introduced`: a front has named the client with the PROXY protocol.
    pub(super) fn new(
        settings: &ThreadSettings,
        link: &ClientLink,
        introduced: bool,
    ) -> WantedPrints {
        let own = !settings.trust.trusts_headers(link.peer.address());
        let wanted = |fact| own && settings.facts.contains(fact);
        WantedPrints {
            ja4: wanted(ClientFact::Ja4),
            h2: wanted(ClientFact::H2),
            rtt: wanted(ClientFact::Rtt) && !introduced,
        }
    }
}

/// Reads on until the ClientHello is complete, and records its fingerprint. The bytes stay unread
/// for the handshake, which also handles a hello that is malformed or never ends.
pub(super) async fn read_hello(begun: &mut SniffedStream, link: &ClientLink) {
    loop {
        match ja4::read(begun.bytes()) {
            PrintParse::More if begun.more(link).await => {}
            PrintParse::Whole(print) => return link.prints.set_ja4(print),
            PrintParse::More | PrintParse::Bad => return,
        }
    }
}

/// Compares the time of the handshake, which has ended, with TCP's round trip. `streams`: the
/// client uses HTTP/2, so a second comparison follows if the handshake took too long.
pub(super) fn compare_round_trips(stream: &mut SniffedStream, link: &ClientLink, streams: bool) {
    let Some((answered, since_read)) = stream.end_timing() else { return };
    let Some(TcpTimes { round_trip, since_data }) = tcp_info::times(&stream.socket()) else {
        return;
    };
    // The answer may have waited for this thread.
    let handshake = answered.saturating_sub(since_data.saturating_sub(since_read));
    let verdict = RttVerdict::new(handshake, round_trip);
    tracing::debug!(
        target: "evenkeel::proxy", client = %link.peer.address(), ?handshake, ?round_trip,
        %verdict, "round trips of TLS and TCP"
    );
    if streams && verdict == RttVerdict::Relayed {
        link.prints.expect_acknowledgement(round_trip);
    } else {
        link.prints.set_rtt(verdict);
    }
}
