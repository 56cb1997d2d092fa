//! `redirect_to_https` and `redirect_except`: which plain requests are sent to `https://`.
//!
//! The answer itself is made by the proxy. Requests for ACME challenges are never sent away; that
//! is the proxy's business too.

use crate::keys::{ConfigKey, DefaultedKey, ListKey, section};
use crate::reader::SectionReader;
use crate::settings::conditions;
use crate::settings::tls::FrontTls;
use crate::values::Read;
use evenkeel_core::condition::patterns::PathPatterns;
use std::fmt;
use std::net::SocketAddr;

/// Sends requests on listeners without TLS to `https://`.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpsRedirect {
    /// The port in the new address.
    pub port: u16,
    /// Paths that are served without TLS.
    pub except: Option<PathPatterns>,
}

/// The value of `redirect_to_https`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectPort {
    Off,
    /// The port of the first listener with TLS.
    OfListener,
    Port(u16),
}

impl fmt::Display for RedirectPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedirectPort::Off => f.write_str("false"),
            RedirectPort::OfListener => f.write_str("true"),
            RedirectPort::Port(port) => port.fmt(f),
        }
    }
}

section! {
    /// Whether requests on listeners without TLS are [answered with 308](tls.md#from-http-to-https)
    /// and the same address under `https://`; needs `tls.listen`. `true` names the port of its
    /// first address, unless that is 443. A number names another port, such as 443 if a container
    /// or a firewall forwards it to a listener with another one.
    REDIRECT_TO_HTTPS: DefaultedKey<RedirectPort> =
        ConfigKey::text("redirect_to_https", redirect_port)
            .range_note("`true`, `false`, a port from 1 to 65535").default(RedirectPort::Off)
            .example("443");
    /// Paths that `redirect_to_https` leaves alone, such as those of health checks: patterns as in
    /// [`when`](#when), which also match all paths below, at most 1024.
    REDIRECT_EXCEPT: ListKey<Box<str>> =
        ConfigKey::text("redirect_except", conditions::path).list().default_note("none")
            .example("/healthz");
}

/// Reads both keys. `listen` are all addresses of the proxy.
pub(crate) fn read(
    proxy: &mut SectionReader<'_, '_>,
    listen: &[SocketAddr],
    tls: Option<&FrontTls>,
) -> Option<HttpsRedirect> {
    let port = proxy.key(&REDIRECT_TO_HTTPS);
    let except = conditions::compiled(proxy, &REDIRECT_EXCEPT, PathPatterns::new);
    if port == RedirectPort::Off {
        proxy.refuse(&["redirect_except"], "needs `redirect_to_https`; set that, or remove it");
        return None;
    }
    let Some(tls) = tls.filter(|tls| tls.plain > 0) else {
        let what = "needs addresses with TLS beside those without: write `tls: {listen: \
                    0.0.0.0:443, ...}`, and `listen: 0.0.0.0:80` for the others";
        proxy.fault_of("redirect_to_https", what);
        return None;
    };
    let own = listen.get(tls.plain).map_or(443, SocketAddr::port);
    let port = if let RedirectPort::Port(port) = port { port } else { own };
    Some(HttpsRedirect { port, except })
}

fn redirect_port(text: &str) -> Read<RedirectPort> {
    match text {
        "false" => Ok(RedirectPort::Off),
        "true" => Ok(RedirectPort::OfListener),
        _ => match text.parse() {
            Ok(port) if port > 0 => Ok(RedirectPort::Port(port)),
            _ => Err("must be true, false, or a port from 1 to 65535".to_owned()),
        },
    }
}
