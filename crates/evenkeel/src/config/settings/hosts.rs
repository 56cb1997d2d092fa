//! Clients by name: who is exempt, who is counted together, and who is asked for names.
//!
//! A name is what reverse DNS says and a lookup of that name confirms. How that is found out:
//! `client::lookup`.

use std::fmt;
use std::net::SocketAddr;

/// What the proxy's section says of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Neither counted nor held. Default: nobody.
    pub exempt: Vec<HostPattern>,
    /// Counted together. Default: nobody.
    pub merge: Vec<Merge>,
    /// Name servers. Default: those of the system.
    pub resolver: Vec<SocketAddr>,
}

impl Hosts {
    /// Whether anybody's name is of any interest.
    #[must_use]
    pub fn matter(&self) -> bool {
        !self.exempt.is_empty() || !self.merge.is_empty()
    }
}

/// Hosts whose name matches `pattern` count as one, called `name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Which.
    pub pattern: HostPattern,
    /// What they count as.
    pub name: Box<str>,
}

/// A host's name, or `*.` and a domain: every name below it, and not the domain itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(Box<str>);

impl HostPattern {
    /// Reads a pattern, in any case.
    #[must_use]
    pub fn parse(text: &str) -> Option<HostPattern> {
        let name = host_name(text.strip_prefix("*.").unwrap_or(text))?;
        let wildcard = text.starts_with("*.");
        Some(HostPattern(if wildcard { format!("*.{name}").into() } else { name }))
    }

    /// Whether it means `name`, which is in lower case and does not end with a dot.
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

/// A host's name in lower case; `None` if no host can have it.
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
