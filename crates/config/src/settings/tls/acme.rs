//! The `proxy.tls.acme` section: certificates that the proxy gets from an authority by itself.
//!
//! They are ordered and renewed by the crate `acme`.

use crate::keys::{ConfigKey, DefaultedKey, ListKey, section};
use crate::reader::SectionReader;
use crate::values::Read;
use std::net::IpAddr;
use std::path::PathBuf;

/// The directory of Let's Encrypt.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Maximum number of names in a certificate, which is also that of Let's Encrypt.
const DOMAINS_MAX: usize = 100;

/// How the authority checks that a name leads here (RFC 8555, 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// It requests a file over HTTP, on port 80 (RFC 8555, 8.3).
    Http01,
    /// It opens a TLS connection on port 443 (RFC 8737).
    TlsAlpn01,
}

const CHALLENGES: [(&str, AcmeChallenge); 2] =
    [("http-01", AcmeChallenge::Http01), ("tls-alpn-01", AcmeChallenge::TlsAlpn01)];

/// A certificate that an authority issues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The names in the certificate, at least one, in lower case.
    pub domains: Vec<String>,
    /// How the authority checks the names.
    pub challenge: AcmeChallenge,
    /// The address for messages of the authority.
    pub email: Option<String>,
    /// The directory of the authority.
    pub directory: String,
    /// File with the authorities of the certificate of the directory's server. `None`: those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// The folder for the account and the certificate.
    pub folder: PathBuf,
}

impl AcmeSettings {
    /// Path of the file with the certificate and its key.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        let name = self.domains.first().map_or("certificate", String::as_str);
        self.folder.join(format!("{name}.pem"))
    }
}

section! {
    ACME_TABLE = "proxy.tls.acme";

    /// The names in the certificate, at most 100. DNS must name the address of this server for each
    /// of them. Wildcards are not possible.
    DOMAINS: ListKey<String> =
        ConfigKey::text("domains", domain).list().default_note("required").example("example.com");
    /// Must be `true`: you agree to the terms of service of the authority, for Let's Encrypt those
    /// at <https://letsencrypt.org/repository/>.
    TERMS_AGREED: DefaultedKey<bool> = ConfigKey::truth("terms_agreed").default(false);
    /// How the authority checks the names: with `http-01` by a request to port 80, with
    /// `tls-alpn-01` by a TLS connection to port 443, which needs no listener without TLS. A
    /// proxy that terminates TLS in front of Evenkeel lets only `http-01` through.
    CHALLENGE: DefaultedKey<AcmeChallenge> =
        ConfigKey::words("challenge", &CHALLENGES).default(AcmeChallenge::Http01);
    /// Address to which the authority sends messages about the account. Let's Encrypt sends none.
    EMAIL: ConfigKey<String> =
        ConfigKey::text("email", email).default_note("none").example("admin@example.com");
    /// Folder for the account and the certificate, which only Evenkeel should be able to read. It
    /// is made if it does not exist. Without its files a start orders again, and authorities allow
    /// few certificates a week for the same names. While it cannot be written, the files are only
    /// in memory.
    FOLDER: DefaultedKey<PathBuf> = ConfigKey::path("folder")
        .written(|_, path| path.display().to_string())
        .default_with(|| PathBuf::from("/var/lib/evenkeel/acme"));
    /// The directory of the authority, a URL with `https://`. To try things out, Let's Encrypt has
    /// `https://acme-staging-v02.api.letsencrypt.org/directory`.
    DIRECTORY: DefaultedKey<String> =
        ConfigKey::text("directory", directory).default_with(|| LETS_ENCRYPT.to_owned());
    /// File in PEM: authorities, one of which must have signed the certificate of the server of
    /// `directory`, such as that of a private authority.
    DIRECTORY_CA: ConfigKey<PathBuf> =
        ConfigKey::path("ca").default_note("those of the system").example("/etc/evenkeel/ca.pem");
}

/// Reads the section. `has_plain`: some listener has no TLS. `asks_clients`: every client must show
/// a certificate.
pub(crate) fn read(
    acme: &mut SectionReader<'_, '_>,
    has_plain: bool,
    asks_clients: bool,
) -> Option<AcmeSettings> {
    let place = acme.place;
    let domains = acme.key(&DOMAINS);
    let agreed = acme.key(&TERMS_AGREED);
    let settings = AcmeSettings {
        challenge: acme.key(&CHALLENGE),
        email: acme.key(&EMAIL),
        directory: acme.key(&DIRECTORY),
        ca: acme.key(&DIRECTORY_CA),
        folder: acme.key(&FOLDER),
        domains,
    };
    if settings.domains.is_empty() && !acme.has("domains") {
        acme.fault("domains", "`acme` needs `domains`: the names in the certificate");
    } else if settings.domains.len() > DOMAINS_MAX {
        acme.fault_of("domains", format!("has more than {DOMAINS_MAX} names; remove some"));
    }
    if !agreed {
        let what = "`acme` needs `terms_agreed: true`: read the terms of service of the authority \
                    first (Let's Encrypt: https://letsencrypt.org/repository/)";
        acme.fault("terms_agreed", what);
    }
    match settings.challenge {
        AcmeChallenge::Http01 if !has_plain => {
            let what = "the authority asks over HTTP, so `acme` needs a listener without TLS: \
                        write `listen: 0.0.0.0:80` in `proxy`, and `listen: 0.0.0.0:443` in \
                        `tls`; or write `challenge: tls-alpn-01`";
            acme.fault_at(place, what);
        }
        AcmeChallenge::TlsAlpn01 if asks_clients => {
            let what = "the authority shows no certificate, so `tls-alpn-01` cannot be used with \
                        the `ca` of `tls`; write `http-01`";
            acme.fault_of("challenge", what);
        }
        AcmeChallenge::Http01 | AcmeChallenge::TlsAlpn01 => {}
    }
    let unlikely = settings.domains.iter().find(|name| is_private(name));
    if let Some(name) = unlikely.filter(|_| settings.directory == LETS_ENCRYPT) {
        let what = format!(
            "`{name}` is no name of the public DNS, so no public authority issues a certificate \
             for it; use a private authority (`directory`), or your own `cert` and `key`"
        );
        acme.warn(acme.place_of("domains"), what);
    }
    (!settings.domains.is_empty()).then_some(settings)
}

/// Whether no public authority can check a name.
fn is_private(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let private = ["localhost", "local", "internal", "test", "example", "invalid", "lan", "home"];
    !name.contains('.') || private.contains(&last)
}

fn domain(text: &str) -> Read<String> {
    if text.starts_with("*.") {
        return Err("a wildcard needs a challenge over DNS, which Evenkeel does not do; list the \
                    names, or let another program get the certificate and name it in `cert`"
            .to_owned());
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err("is an address; write a name such as example.com".to_owned());
    }
    super::dns_name(text)
        .map(|name| name.trim_end_matches('.').to_ascii_lowercase())
        .map_err(|_| "write a name such as example.com, without https:// or a port".to_owned())
}

fn email(text: &str) -> Read<String> {
    let is_sound = |(user, host): (&str, &str)| {
        !user.is_empty() && host.contains('.') && !text.contains(char::is_whitespace)
    };
    let good = text.split_once('@').is_some_and(is_sound);
    good.then(|| text.to_owned()).ok_or_else(|| "write an address: admin@example.com".to_owned())
}

fn directory(text: &str) -> Read<String> {
    let host = text.strip_prefix("https://").map(|rest| rest.split('/').next().unwrap_or_default());
    let good =
        host.is_some_and(|host| !host.is_empty()) && text.bytes().all(|b| b.is_ascii_graphic());
    good.then(|| text.to_owned())
        .ok_or_else(|| format!("write the URL of a directory: {LETS_ENCRYPT}"))
}
