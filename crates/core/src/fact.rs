//! Facts about a client or its connection that are found outside of the core: from databases of
//! networks, from the handshake, or from a signature.
//!
//! A door finds a fact only if a limit or a condition names it, so a fact that nothing names costs
//! nothing. A fact may be absent: a connection without TLS has no `ja4`.

use core::fmt;

/// A fact about a client or its connection, as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientFact {
    /// The autonomous system that announces the client's address, such as `AS64500`.
    Asn,
    /// The country that the client's address is registered in: two capital letters.
    Country,
    /// The JA4 fingerprint of the TLS `ClientHello`.
    Ja4,
    /// The fingerprint of the HTTP/2 connection: settings, window and order of the pseudo-headers.
    H2,
    /// Whether the TLS handshake took longer than the TCP connection explains.
    Rtt,
    /// Whether the headers agree with the browser that `User-Agent` names.
    Fetch,
    /// The name of the robot that the client has proven to be.
    Bot,
    /// The name of the robot that the client claims to be without proof.
    Impostor,
}

impl ClientFact {
    /// All facts.
    pub const ALL: [ClientFact; 8] = [
        ClientFact::Asn,
        ClientFact::Country,
        ClientFact::Ja4,
        ClientFact::H2,
        ClientFact::Rtt,
        ClientFact::Fetch,
        ClientFact::Bot,
        ClientFact::Impostor,
    ];

    /// The name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ClientFact::Asn => "asn",
            ClientFact::Country => "country",
            ClientFact::Ja4 => "ja4",
            ClientFact::H2 => "h2",
            ClientFact::Rtt => "rtt",
            ClientFact::Fetch => "fetch",
            ClientFact::Bot => "bot",
            ClientFact::Impostor => "impostor",
        }
    }

    /// The fact of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<ClientFact> {
        ClientFact::ALL.into_iter().find(|fact| fact.name() == name)
    }
}

impl fmt::Display for ClientFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FactSet(u8);

const _: () = assert!(ClientFact::ALL.len() <= u8::BITS as usize, "a bit for each fact");

impl FactSet {
    /// Adds a fact.
    pub fn insert(&mut self, fact: ClientFact) {
        self.0 |= 1 << fact as u8;
    }

    /// The facts of both sets.
    #[must_use]
    pub const fn and(self, other: FactSet) -> FactSet {
        FactSet(self.0 | other.0)
    }

    /// Whether the set contains a fact.
    #[must_use]
    pub const fn contains(self, fact: ClientFact) -> bool {
        self.0 >> fact as u8 & 1 == 1
    }
}

impl FromIterator<ClientFact> for FactSet {
    fn from_iter<I: IntoIterator<Item = ClientFact>>(facts: I) -> FactSet {
        let mut set = FactSet::default();
        facts.into_iter().for_each(|fact| set.insert(fact));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fact_is_found_by_its_name_and_has_its_own_bit() {
        let mut set = FactSet::default();
        for fact in ClientFact::ALL {
            assert_eq!(ClientFact::named(fact.name()), Some(fact));
            assert!(!set.contains(fact), "{fact}");
            set.insert(fact);
            assert!(set.contains(fact), "{fact}");
        }
        assert_eq!(ClientFact::named("ja3"), None);
        assert_eq!(ClientFact::ALL.into_iter().collect::<FactSet>(), set);
    }
}
