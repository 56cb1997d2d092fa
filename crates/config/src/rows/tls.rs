//! The keys of the `tls` sections: certificates of doors, and TLS of outgoing connections.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::settings::BackendProtocol;
use crate::values::Read;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The rows of `proxy.tls`.
pub static FRONT: SectionTable = SectionTable {
    path: "proxy.tls",
    keys: &[&LISTEN, &CERT, &KEY, &CERTIFICATES, &MIN_VERSION, &CLIENT_CA, &CLIENT_NAME],
};

/// The rows of an entry of `proxy.tls.certificates`.
pub static CERTIFICATE: SectionTable =
    SectionTable { path: "proxy.tls.certificates", keys: &[&REQUIRED_CERT, &REQUIRED_KEY] };

/// The rows of `ratelimit.tls`.
pub static SERVER: SectionTable = SectionTable {
    path: "ratelimit.tls",
    keys: &[&REQUIRED_CERT, &REQUIRED_KEY, &CLIENT_CA, &CLIENT_NAME, &HTTP],
};

/// The rows of `proxy.backend_tls`.
pub static BACKEND: SectionTable = SectionTable {
    path: "proxy.backend_tls",
    keys: &[&CA, &VERIFY, &SERVER_NAME, &OWN_CERT, &OWN_KEY, &PROTOCOL],
};

/// The rows of the `tls` section of an outgoing connection.
pub static CLIENT: SectionTable =
    SectionTable { path: "traces.tls", keys: &[&CA, &OWN_CERT, &OWN_KEY, &SERVER_NAME] };

/// The rows of `store.tls`.
pub static STORE: SectionTable =
    SectionTable { path: "store.tls", keys: &[&CA, &OWN_CERT, &OWN_KEY, &ANY_NAME] };

/// The rows of `peers.tls`.
pub static PEERS: SectionTable =
    SectionTable { path: "peers.tls", keys: &[&REQUIRED_CERT, &REQUIRED_KEY, &PEER_CA] };

pub(crate) static LISTEN: ListKey<SocketAddr> = ConfigKey::text(
    "listen",
    address::listen,
    "Addresses with TLS in addition to those of `proxy.listen`, which then have no TLS.",
)
.default_note("all of `proxy.listen` have TLS")
.example("127.0.0.1:8443")
.list();

pub(crate) static CERT: ConfigKey<PathBuf> = ConfigKey::path(
    "cert",
    "File in PEM: the certificate, followed by the intermediate certificates.",
)
.example("/etc/evenkeel/cert.pem");

pub(crate) static KEY: ConfigKey<PathBuf> =
    ConfigKey::path("key", "File in PEM: the private key of the certificate, without a password.")
        .example("/etc/evenkeel/key.pem");

pub(crate) static REQUIRED_CERT: ConfigKey<PathBuf> = ConfigKey::path(
    "cert",
    "File in PEM: the certificate, followed by the intermediate certificates.",
)
.example("/etc/evenkeel/cert.pem")
.required();

pub(crate) static REQUIRED_KEY: ConfigKey<PathBuf> = ConfigKey::path(
    "key",
    "File in PEM: the private key of the certificate, without a password (RSA, ECDSA or Ed25519).",
)
.example("/etc/evenkeel/key.pem")
.required();

pub(crate) static CERTIFICATES: SubsectionKey = SubsectionKey::list(
    "certificates",
    &CERTIFICATE,
    "Further certificates, at most 256 in total: sections with `cert` and `key`. A client gets the \
     certificate for the name that it asks for, else the first of all.",
);

pub(crate) static MIN_VERSION: DefaultedKey<bool> = ConfigKey::words(
    "min_version",
    &[("1.2", true), ("1.3", false)],
    "The oldest TLS version that is accepted.",
)
.default(true);

pub(crate) static CLIENT_CA: ConfigKey<PathBuf> = ConfigKey::path(
    "ca",
    "File in PEM: authorities, one of which must have signed the certificate that each client \
     then has to show.",
)
.default_note("clients need no certificate")
.example("/etc/evenkeel/ca.pem");

pub(crate) static CLIENT_NAME: ConfigKey<String> = ConfigKey::text(
    "client_name",
    dns_name,
    "The DNS name that the certificates of clients must be valid for. Needs `ca`.",
)
.default_note("any name")
.example("envoy.example");

pub(crate) static HTTP: DefaultedKey<bool> = ConfigKey::truth(
    "http",
    "Whether the HTTP port uses TLS too. The ports for debugging and Prometheus never do.",
)
.default(false);

pub(crate) static CA: ConfigKey<PathBuf> = ConfigKey::path(
    "ca",
    "File in PEM: authorities, one of which must have signed the certificate of the server.",
)
.default_note("those of the system")
.example("/etc/evenkeel/ca.pem");

pub(crate) static PEER_CA: ConfigKey<PathBuf> = ConfigKey::path(
    "ca",
    "File in PEM: the authorities. Each instance with a certificate of one of them is trusted.",
)
.example("/etc/evenkeel/ca.pem")
.required();

pub(crate) static OWN_CERT: ConfigKey<PathBuf> = ConfigKey::path(
    "cert",
    "File in PEM: the certificate for servers that ask for one. Needs `key`.",
)
.example("/etc/evenkeel/cert.pem");

pub(crate) static OWN_KEY: ConfigKey<PathBuf> =
    ConfigKey::path("key", "File in PEM: the private key of `cert`.")
        .example("/etc/evenkeel/key.pem");

pub(crate) static SERVER_NAME: ConfigKey<String> = ConfigKey::text(
    "server_name",
    dns_name,
    "The DNS name that the certificate of the server must be valid for, and that is requested \
     (SNI).",
)
.default_note("the host of the address")
.example("app.example");

pub(crate) static VERIFY: DefaultedKey<bool> = ConfigKey::truth(
    "verify",
    "Whether the certificate of the server is verified. With `false`, any host on the way can \
     pretend to be the server.",
)
.default(true);

pub(crate) static PROTOCOL: DefaultedKey<BackendProtocol> = ConfigKey::words(
    "protocol",
    &[
        ("auto", BackendProtocol::Auto),
        ("http1", BackendProtocol::Http1),
        ("http2", BackendProtocol::Http2),
    ],
    "`auto`: HTTP/2 if the server chooses it (ALPN), else HTTP/1.1; requests that may become a \
     WebSocket use HTTP/1.1. `http1` and `http2` permit only this version.",
)
.default(BackendProtocol::Auto);

pub(crate) static ANY_NAME: DefaultedKey<bool> = ConfigKey::truth(
    "any_name",
    "Whether a certificate of these authorities is accepted for any name.",
)
.default(false);

/// Reads a DNS name as certificates contain it.
fn dns_name(text: &str) -> Read<String> {
    let good = rustls::pki_types::DnsName::try_from(text).is_ok();
    good.then(|| text.to_owned()).ok_or_else(|| "write a DNS name: envoy.example".to_owned())
}
