//! The proxies in front whose word about the client is taken: networks, or the name of a list of
//! networks that an operator of proxies publishes.
//!
//! A list is part of the program, so it is as old as the program. What is missing in it is not
//! trusted: the clients behind such a proxy count as one, and `evenkeel doctor` names it. To renew
//! a list, replace its networks and its date by what the operator publishes.

use crate::address;
use ipnet::IpNet;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

/// The name of Cloudflare's list in `trusted_proxies`.
const CLOUDFLARE: &str = "cloudflare";

/// The networks that Cloudflare publishes at <https://www.cloudflare.com/ips/>.
static CLOUDFLARE_NETWORKS: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    let networks = include_str!("cloudflare.txt").lines().filter(|line| !line.starts_with('#'));
    networks.filter_map(|line| line.parse().ok()).collect()
});

/// The date of the list, as it is in its first line.
const CLOUDFLARE_DATE: &str = "2026-10-14";

/// An entry of `trusted_proxies`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustedProxies {
    /// A network.
    Network(IpNet),
    /// The networks of Cloudflare.
    Cloudflare,
}

impl TrustedProxies {
    /// The networks of the entry.
    #[must_use]
    pub fn networks(&self) -> &[IpNet] {
        match self {
            TrustedProxies::Network(network) => std::slice::from_ref(network),
            TrustedProxies::Cloudflare => &CLOUDFLARE_NETWORKS,
        }
    }

    /// The date of a list; `None` for a network.
    #[must_use]
    pub fn date(&self) -> Option<&'static str> {
        matches!(self, TrustedProxies::Cloudflare).then_some(CLOUDFLARE_DATE)
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustedProxies::Network(network) => network.fmt(f),
            TrustedProxies::Cloudflare => f.write_str(CLOUDFLARE),
        }
    }
}

impl FromStr for TrustedProxies {
    type Err = String;

    fn from_str(text: &str) -> Result<TrustedProxies, String> {
        match text {
            CLOUDFLARE => Ok(TrustedProxies::Cloudflare),
            _ if text.contains(['.', ':']) => address::network(text).map(TrustedProxies::Network),
            _ => Err(format!("neither a network nor a list; write 10.0.0.0/8 or {CLOUDFLARE}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_complete_and_dated() {
        let text = include_str!("cloudflare.txt");
        assert!(text.lines().next().expect("a line").ends_with(CLOUDFLARE_DATE));
        let networks = TrustedProxies::Cloudflare.networks();
        let written = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(networks.len(), written, "each line is a network");
        assert!(networks.iter().all(|network| *network == network.trunc()), "none has host bits");
        let contains = |address: &str| {
            let address = address.parse::<std::net::IpAddr>().expect("an address");
            networks.iter().any(|network| network.contains(&address))
        };
        assert!(["173.245.48.1", "104.27.255.255", "2606:4700::1"].into_iter().all(contains));
        assert!(!["104.28.0.0", "10.0.0.1", "2606:4701::1"].into_iter().any(contains));
    }

    #[test]
    fn entries_are_networks_or_names_of_lists() {
        let read = |text: &str| text.parse().map(|entry: TrustedProxies| entry.to_string());
        assert_eq!(read("cloudflare"), Ok("cloudflare".to_owned()));
        assert_eq!(read("10.1.2.3/8"), Ok("10.0.0.0/8".to_owned()));
        assert!(read("Cloudfare").expect_err("unknown").contains("cloudflare"));
        assert!(read("10.0.0.0/33").expect_err("too long").contains("0 to 32"));
    }
}
