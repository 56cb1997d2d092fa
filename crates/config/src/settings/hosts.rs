//! Clients by host name: those that are exempt, those that count together, and the name servers.
//!
//! The name of a client is what reverse DNS returns and a forward lookup of that name confirms. The
//! lookup itself is in `identity::lookup`.

use std::fmt;
use std::net::SocketAddr;

/// The settings of the proxy that concern host names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// Clients with these names are neither counted nor held.
    pub exempt: Vec<HostPattern>,
    /// Clients that count as one under limits by `host`; the first match applies.
    pub merge: Vec<HostMerge>,
    /// The names of the hosts of each robot, in the order of the robots.
    pub robots: Vec<Vec<HostPattern>>,
    /// Addresses of the name servers to use.
    pub resolver: Vec<SocketAddr>,
}

impl HostSettings {
    /// Whether any setting needs host names. If not, no name is resolved.
    #[must_use]
    pub fn needs_names(&self) -> bool {
        self.needs_all_names() || self.robots.iter().any(|hosts| !hosts.is_empty())
    }

    /// Whether the name of each client is needed, and not only those of clients that call
    /// themselves robots.
    #[must_use]
    pub fn needs_all_names(&self) -> bool {
        !self.exempt.is_empty() || !self.merge.is_empty()
    }
}

/// Clients with a host name that matches `pattern` count as one, called `name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMerge {
    /// The host names that count together.
    pub pattern: HostPattern,
    /// The name under which they count.
    pub name: Box<str>,
}

/// A host name, or `*.` and a domain. The wildcard matches every name below the domain, not the
/// domain itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(Box<str>);

impl HostPattern {
    /// Parses a pattern and converts it to lower case. `None` if no host can have such a name.
    #[must_use]
    pub fn parse(text: &str) -> Option<HostPattern> {
        let name = host_name(text.strip_prefix("*.").unwrap_or(text))?;
        let wildcard = text.starts_with("*.");
        Some(HostPattern(if wildcard { format!("*.{name}").into() } else { name }))
    }

    /// Whether the pattern matches `name`. Invariant: `name` is in lower case and has no dot at its
    /// end.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_prefix('*') {
            Some(below) => name.len() > below.len() && name.ends_with(below),
            None => *self.0 == *name,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Converts a host name to lower case. `None` if no host can have this name.
#[must_use]
pub fn host_name(text: &str) -> Option<Box<str>> {
    let label = |label: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(fits)
    };
    let sound = text.len() <= 253 && text.split('.').all(label);
    sound.then(|| text.to_ascii_lowercase().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        HostPattern::parse(pattern).expect("a pattern").matches(name)
    }

    #[test]
    fn p8_a_pattern_needs_a_label_before_its_domain() {
        assert!(matches("*.stonehenge.com", "www.stonehenge.com"));
        assert!(matches("*.stonehenge.com", "a.b.stonehenge.com"));
        assert!(matches("*.Stonehenge.COM", "www.stonehenge.com"));
        assert!(!matches("*.stonehenge.com", "stonehenge.com"));
        assert!(!matches("*.stonehenge.com", ".stonehenge.com"));
        assert!(!matches("*.stonehenge.com", "www.notstonehenge.com"));
        assert!(!matches("*.stonehenge.com", "www.stonehenge.com.evil.example"));
        assert!(matches("www.example.com", "www.example.com"));
        assert!(!matches("www.example.com", "a.www.example.com"));
    }

    #[test]
    fn what_no_host_is_called_is_refused() {
        for text in ["", "*", "*.", "*.*.com", "a..b", "a b", "a/../b", ".a", "a.", "w*.com"] {
            assert_eq!(HostPattern::parse(text), None, "{text}");
        }
    }
}
