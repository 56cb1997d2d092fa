//! Whether a client speaks TLS through a relay that ends TCP, such as a CONNECT or SOCKS proxy.
//!
//! TCP's round trip ends at the relay, that of the TLS handshake at the client behind it. So the
//! handshake of a relayed client takes longer, by the round trip between relay and client (BADPASS,
//! 2022; CalcuLatency, 2024). A browser may also take longer because it verifies the certificate.
//! So over HTTP/2 a long handshake alone decides nothing. The acknowledgement of the settings has
//! to be late too; it needs no calculation.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// The time that a direct client takes at most to calculate its answer.
const CALCULATION: Duration = Duration::from_millis(15);

/// The part of a round trip by which the next one may be longer.
const JITTER: u32 = 4;

/// How a client is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RttVerdict {
    /// TLS and TCP end at the same place, or near each other.
    Direct,
    /// TLS ends farther away than TCP.
    Relayed,
}

impl RttVerdict {
    /// Compares the time from the server's last flight to the end of the handshake with TCP's
    /// estimate of the round trip.
    #[must_use]
    pub fn new(handshake: Duration, round_trip: Duration) -> RttVerdict {
        if handshake > RttVerdict::direct_max(round_trip) {
            RttVerdict::Relayed
        } else {
            RttVerdict::Direct
        }
    }

    /// Compares the time from the server's settings (HTTP/2) to their acknowledgement with TCP's
    /// estimate, after the handshake has taken too long. An acknowledgement that comes before the
    /// settings can have arrived is made up.
    #[must_use]
    pub fn of_acknowledgement(elapsed: Duration, round_trip: Duration) -> RttVerdict {
        if elapsed < round_trip / 2 {
            RttVerdict::Relayed
        } else {
            RttVerdict::new(elapsed, round_trip)
        }
    }

    /// The longest time that a direct client takes to answer.
    #[must_use]
    pub fn direct_max(round_trip: Duration) -> Duration {
        round_trip + CALCULATION.max(round_trip / JITTER)
    }

    /// The value of the fact `rtt`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            RttVerdict::Direct => "direct",
            RttVerdict::Relayed => "relayed",
        }
    }
}

impl Display for RttVerdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_relayed_if_neither_calculation_nor_jitter_explains_the_excess() {
        for (round_trip, handshake, verdict) in [
            (0, 15, "direct"),
            (0, 20, "relayed"),
            (40, 30, "direct"),
            (40, 55, "direct"),
            (40, 60, "relayed"),
            (200, 250, "direct"),
            (200, 260, "relayed"),
        ] {
            let [round_trip, handshake] = [round_trip, handshake].map(Duration::from_millis);
            assert_eq!(RttVerdict::new(handshake, round_trip).as_str(), verdict);
            let acknowledged = RttVerdict::of_acknowledgement(handshake, round_trip);
            assert_eq!(acknowledged.as_str(), verdict);
        }
        let [early, round_trip] = [10, 40].map(Duration::from_millis);
        assert_eq!(RttVerdict::of_acknowledgement(early, round_trip), RttVerdict::Relayed);
    }
}
