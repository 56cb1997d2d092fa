//! What a snapshot says of clients beside their cost: how long they wait for answers, and what is
//! known of each.
//!
//! Here each client counts once. The metrics have the same times by request.

use serde::{Deserialize, Serialize};

/// How long the clients of the last minute wait for their answers. The figure of a client is the
/// median of its last five requests; with a language model, of the times to the first byte. A
/// client counts by its key under the first limit, and once, however many requests it sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientTimesLoad {
    /// The clients that were in credit at their last request; `null` if there are none.
    pub credit: Option<TierTimesRow>,
    /// The clients that were in debt; `null` if there are none.
    pub debt: Option<TierTimesRow>,
}

/// How long some clients wait for their answers, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierTimesRow {
    /// The number of clients.
    pub clients: usize,
    /// The time within which half of the clients get their answers: the typical client.
    pub median: f64,
    /// The time within which 95 % of the clients get their answers.
    pub p95: f64,
    /// The time of the slowest client.
    pub longest: f64,
    /// The name of the slowest client; `null` if it is unknown.
    pub slowest: Option<String>,
}

impl ClientTimesLoad {
    /// A line for people about the clients of each tier that has any.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let credit = self.credit.iter().map(|times| times.line("credit"));
        credit.chain(self.debt.iter().map(|times| times.line("debt")))
    }
}

impl TierTimesRow {
    fn line(&self, tier: &str) -> String {
        let TierTimesRow { clients, median, p95, longest, slowest } = self;
        let [median, p95, longest] = [*median, *p95, *longest].map(short);
        let slowest = slowest.as_deref().unwrap_or("?");
        match clients {
            1 => format!("1 client in {tier}: {slowest} is answered in {median}"),
            _ => format!(
                "{clients} clients in {tier}: the typical one is answered in {median}, 95 % within \
                 {p95}; slowest: {slowest} ({longest})"
            ),
        }
    }
}

/// A time in milliseconds, or in seconds from one second on.
fn short(seconds: f64) -> String {
    match seconds {
        s if s < 0.0095 => format!("{:.1} ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

/// What is known of a client beside its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientAbout {
    /// Seconds since the client was added to the list.
    #[serde(default)]
    pub first_seen: f64,
    /// Seconds that its requests took: the median of the last five; `null` if none has ended.
    #[serde(default)]
    pub answered: Option<f64>,
    /// The route of most of its requests: method and path, numbers folded.
    #[serde(default)]
    pub route: Option<String>,
    /// The user agent of most of its requests.
    #[serde(default)]
    pub agent: Option<String>,
    /// The group that its verified host name makes it count as.
    #[serde(default)]
    pub group: Option<String>,
    /// The number of its network, `AS64500`, if a file about networks has it.
    #[serde(default)]
    pub asn: Option<String>,
    /// The country of its network, if a file about networks has it.
    #[serde(default)]
    pub country: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_client_and_the_slowest_are_told_in_a_line() {
        let credit = TierTimesRow {
            clients: 28,
            median: 0.0071,
            p95: 4.8,
            longest: 12.3,
            slowest: Some("203.0.113.7".to_owned()),
        };
        let debt = TierTimesRow { clients: 1, median: 0.25, slowest: None, ..credit.clone() };
        let times = ClientTimesLoad { credit: Some(credit), debt: Some(debt) };
        let expected = [
            "28 clients in credit: the typical one is answered in 7.1 ms, 95 % within 4.8 s; \
             slowest: 203.0.113.7 (12 s)",
            "1 client in debt: ? is answered in 250 ms",
        ];
        assert_eq!(times.lines().collect::<Vec<_>>(), expected);
    }
}
