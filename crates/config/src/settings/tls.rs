//! The `tls` sections: for doors, their certificates and the clients that they accept; for outgoing
//! connections, the servers that are trusted.
//!
//! Only paths are read here; the module `tls` reads the files. The `tls` of peers is read in
//! `peers`, because there both ends have the same settings.

mod acme;

use super::backend::BackendProtocol;
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::{SectionReader, settings};
use crate::values::Read;
pub use acme::{AcmeChallenge, AcmeSettings};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Certificate of a server, and the clients that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Path of the certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// Path of the certificate's private key.
    pub key: PathBuf,
    /// Which certificates clients must show.
    pub clients: Option<TlsClients>,
}

/// Clients that are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClients {
    /// The authorities, one of which must have signed the client's certificate.
    pub ca: PathBuf,
    /// The DNS name that the certificate must be valid for.
    pub name: Option<String>,
}

settings! {
    /// How a TLS client authenticates servers, and itself to them.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ClientTls from client(tls);

    /// File in PEM: authorities, one of which must have signed the certificate of the server.
    pub ca: Option<PathBuf>, CA: ConfigKey<PathBuf> =
        ConfigKey::path("ca").default_note("those of the system").example("/etc/evenkeel/ca.pem");
    /// Certificate and key for servers that ask for a client certificate.
    pub identity: Option<(PathBuf, PathBuf)> = identity(tls);
    /// The DNS name that the certificate of the server must be valid for, and that is requested
    /// (SNI).
    pub name: Option<String>, SERVER_NAME: ConfigKey<String> =
        ConfigKey::text("server_name", dns_name).default_note("the host of the address")
            .example("app.example");
}

/// TLS settings of the proxy's listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontTls {
    /// Number of addresses at the start of `listen` that do not use TLS.
    pub plain: usize,
    /// Certificates and their keys. The first one is used for clients that send no name (SNI), or a
    /// name that no certificate covers.
    pub certificates: Vec<(PathBuf, PathBuf)>,
    /// The certificate that an authority issues. Its file is the last of `certificates`.
    pub acme: Option<AcmeSettings>,
    /// Which certificates clients must show.
    pub clients: Option<TlsClients>,
    /// Whether TLS 1.2 is accepted in addition to 1.3.
    pub tls12: bool,
}

section! {
    FRONT = "proxy.tls": LISTEN, CERT, KEY, CERTIFICATES, ACME, MIN_VERSION, CLIENT_CA, CLIENT_NAME;
    CERTIFICATE = "proxy.tls.certificates": REQUIRED_CERT, REQUIRED_KEY;
    SERVER = "ratelimit.tls": REQUIRED_CERT, REQUIRED_KEY, CLIENT_CA, CLIENT_NAME, HTTP;
    BACKEND = "proxy.backend_tls": CA, VERIFY, SERVER_NAME, OWN_CERT, OWN_KEY, PROTOCOL;
    CLIENT = "traces.tls": CA, OWN_CERT, OWN_KEY, SERVER_NAME;
    STORE = "store.tls": CA, OWN_CERT, OWN_KEY, ANY_NAME;
    PEERS = "peers.tls": REQUIRED_CERT, REQUIRED_KEY, PEER_CA;
}

section! {
    /// Addresses with TLS in addition to those of `proxy.listen`, which then have no TLS.
    LISTEN: ListKey<SocketAddr> = ConfigKey::text("listen", address::listen).list()
        .default_note("all of `proxy.listen` have TLS").example("127.0.0.1:8443");
    /// File in PEM: the certificate, followed by the intermediate certificates.
    CERT: ConfigKey<PathBuf> = ConfigKey::path("cert").example("/etc/evenkeel/cert.pem");
    /// File in PEM: the private key of the certificate, without a password.
    KEY: ConfigKey<PathBuf> = ConfigKey::path("key").example("/etc/evenkeel/key.pem");
    /// File in PEM: the certificate, followed by the intermediate certificates.
    REQUIRED_CERT: ConfigKey<PathBuf> =
        ConfigKey::path("cert").required().example("/etc/evenkeel/cert.pem");
    /// File in PEM: the private key of the certificate, without a password (RSA, ECDSA or Ed25519).
    REQUIRED_KEY: ConfigKey<PathBuf> =
        ConfigKey::path("key").required().example("/etc/evenkeel/key.pem");
    /// Further certificates, at most 256 in total: sections with `cert` and `key`. A client gets
    /// the certificate for the name that it asks for, else the first of all.
    CERTIFICATES: SubsectionKey = SubsectionKey::list("certificates", &CERTIFICATE);
    /// A certificate that Evenkeel [gets and renews by itself](#proxytlsacme), beside or in place
    /// of those in files.
    ACME: SubsectionKey = SubsectionKey::one("acme", &acme::ACME_TABLE).default_note("none");
    /// The oldest TLS version that is accepted.
    MIN_VERSION: DefaultedKey<bool> =
        ConfigKey::words("min_version", &[("1.2", true), ("1.3", false)]).default(true);
    /// File in PEM: authorities, one of which must have signed the certificate that each client
    /// then has to show.
    CLIENT_CA: ConfigKey<PathBuf> = ConfigKey::path("ca")
        .default_note("clients need no certificate").example("/etc/evenkeel/ca.pem");
    /// The DNS name that the certificates of clients must be valid for. Needs `ca`.
    CLIENT_NAME: ConfigKey<String> =
        ConfigKey::text("client_name", dns_name).default_note("any name").example("envoy.example");
    /// Whether the HTTP port uses TLS too. The ports for debugging and Prometheus never do.
    HTTP: DefaultedKey<bool> = ConfigKey::truth("http").default(false);
    /// File in PEM: the authorities. Each instance with a certificate of one of them is trusted.
    PEER_CA: ConfigKey<PathBuf> = ConfigKey::path("ca").required().example("/etc/evenkeel/ca.pem");
    /// File in PEM: the certificate for servers that ask for one. Needs `key`.
    OWN_CERT: ConfigKey<PathBuf> = ConfigKey::path("cert").example("/etc/evenkeel/cert.pem");
    /// File in PEM: the private key of `cert`.
    OWN_KEY: ConfigKey<PathBuf> = ConfigKey::path("key").example("/etc/evenkeel/key.pem");
    /// Whether the certificate of the server is verified. With `false`, any host on the way can
    /// pretend to be the server.
    VERIFY: DefaultedKey<bool> = ConfigKey::truth("verify").default(true);
    /// `auto`: HTTP/2 if the server chooses it (ALPN), else HTTP/1.1; requests that may become a
    /// WebSocket use HTTP/1.1. `http1` and `http2` permit only this version.
    PROTOCOL: DefaultedKey<BackendProtocol> =
        ConfigKey::words("protocol", BackendProtocol::WORDS).default(BackendProtocol::Auto);
    /// Whether a certificate of these authorities is accepted for any name.
    ANY_NAME: DefaultedKey<bool> = ConfigKey::truth("any_name").default(false);
}

/// Maximum number of certificates of one door. A handshake may scan all of them.
const CERTIFICATES_MAX: usize = 256;

/// Reads the keys that all doors have in common.
pub(crate) fn server(tls: &mut SectionReader<'_, '_>) -> Option<ServerTls> {
    tls.require(&["cert", "key"], |key| format!("`tls` needs `{key}`: a file in PEM"));
    let cert = tls.key(&REQUIRED_CERT);
    let key = tls.key(&REQUIRED_KEY);
    let clients = clients(tls);
    Some(ServerTls { cert: cert?, key: key?, clients })
}

/// Reads the `tls` section of the proxy: several certificates, and the addresses that use TLS.
/// `listen` holds the addresses of the door. All of them use TLS unless the section has addresses
/// of its own; those are appended to `listen`.
pub(crate) fn front(
    tls: &mut SectionReader<'_, '_>,
    listen: &mut Vec<SocketAddr>,
) -> Option<FrontTls> {
    let own = tls.key(&LISTEN);
    let plain = if own.is_empty() { 0 } else { listen.len() };
    listen.extend(own);
    let mut certificates = Vec::new();
    match (tls.key(&CERT), tls.key(&KEY)) {
        (Some(cert), Some(key)) => certificates.push((cert, key)),
        (None, None) => {}
        (Some(_), None) => tls.fault_of("cert", "needs `key`: a file in PEM"),
        (None, Some(_)) => tls.fault_of("key", "needs `cert`: a file in PEM"),
    }
    certificates.extend(further(tls));
    let asks_clients = tls.written("ca");
    let acme =
        tls.section_if_written(&ACME, |section| acme::read(section, plain > 0, asks_clients));
    let acme = acme.flatten();
    certificates.extend(acme.iter().map(|acme| (acme.certificate(), acme.certificate())));
    if certificates.is_empty() && !tls.written("acme") {
        let what = "`tls` needs `cert` and `key`: files in PEM; or `acme`, to get a certificate \
                    from an authority";
        tls.fault("cert", what);
    } else if certificates.len() > CERTIFICATES_MAX {
        let what = format!("more than {CERTIFICATES_MAX} certificates; remove some");
        tls.fault("certificates", what);
    }
    let clients = clients(tls);
    let tls12 = tls.key(&MIN_VERSION);
    Some(FrontTls { plain, certificates, acme, clients, tls12 })
}

/// Reads `certificates`: those after the first one.
fn further(tls: &mut SectionReader<'_, '_>) -> Vec<(PathBuf, PathBuf)> {
    let Some(nodes) = tls.nodes_of(&CERTIFICATES) else { return Vec::new() };
    let read = tls.sections(&CERTIFICATES, nodes, |one| {
        let missing = |key: &str| format!("a certificate needs `{key}`: a file in PEM");
        one.require(&["cert", "key"], missing);
        one.key(&REQUIRED_CERT).zip(one.key(&REQUIRED_KEY))
    });
    read.into_iter().flatten().collect()
}

/// Reads which clients are accepted.
fn clients(tls: &mut SectionReader<'_, '_>) -> Option<TlsClients> {
    let ca = tls.key(&CLIENT_CA);
    let name = tls.key(&CLIENT_NAME);
    if name.is_some() && ca.is_none() {
        let what = "needs `ca`: the authorities of the certificates of clients";
        tls.fault_of("client_name", what);
    }
    ca.map(|ca| TlsClients { ca, name })
}

fn identity(tls: &mut SectionReader<'_, '_>) -> Option<(PathBuf, PathBuf)> {
    let (cert, key) = (tls.key(&OWN_CERT), tls.key(&OWN_KEY));
    match (&cert, &key) {
        (Some(_), None) => tls.fault_of("cert", "needs `key`: its private key, in PEM"),
        (None, Some(_)) => tls.fault_of("key", "needs `cert`: its certificate, in PEM"),
        _ => {}
    }
    cert.zip(key)
}

/// Reads a DNS name as certificates contain it.
fn dns_name(text: &str) -> Read<String> {
    let good = rustls::pki_types::DnsName::try_from(text).is_ok();
    good.then(|| text.to_owned()).ok_or_else(|| "write a DNS name: envoy.example".to_owned())
}
