//! The `tls` sections: for doors, their certificates and the clients that they accept; for outgoing
//! connections, the servers that are trusted.
//!
//! Only paths are read here; the module `tls` reads the files. The `tls` of peers is read in
//! `peers`, because there both ends have the same settings.

use crate::reader::SectionReader;
use crate::rows::tls as rows;
use crate::settings::tls::{ClientTls, FrontTls, ServerTls, TlsClients};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Maximum number of certificates of one door. A handshake may scan all of them.
const CERTIFICATES_MAX: usize = 256;

/// Reads the keys that all doors have in common.
pub fn server(tls: &mut SectionReader<'_, '_>) -> Option<ServerTls> {
    for key in ["cert", "key"] {
        if !tls.has(key) {
            tls.fault(key, format!("`tls` needs `{key}`: a file in PEM"));
        }
    }
    let cert = tls.key(&rows::REQUIRED_CERT);
    let key = tls.key(&rows::REQUIRED_KEY);
    let clients = clients(tls);
    Some(ServerTls { cert: cert?, key: key?, clients })
}

/// Reads the `tls` section of the proxy: several certificates, and the addresses that use TLS.
/// `listen` holds the addresses of the door. All of them use TLS unless the section has addresses
/// of its own; those are appended to `listen`.
pub fn front(tls: &mut SectionReader<'_, '_>, listen: &mut Vec<SocketAddr>) -> Option<FrontTls> {
    let own = tls.key(&rows::LISTEN);
    let plain = if own.is_empty() { 0 } else { listen.len() };
    listen.extend(own);
    let mut certificates = Vec::new();
    match (tls.key(&rows::CERT), tls.key(&rows::KEY)) {
        (Some(cert), Some(key)) => certificates.push((cert, key)),
        (None, None) => {}
        (Some(_), None) => tls.fault_of("cert", "needs `key`: a file in PEM"),
        (None, Some(_)) => tls.fault_of("key", "needs `cert`: a file in PEM"),
    }
    certificates.extend(further(tls));
    if certificates.is_empty() {
        tls.fault("cert", "`tls` needs `cert` and `key`: files in PEM");
    } else if certificates.len() > CERTIFICATES_MAX {
        let what = format!("more than {CERTIFICATES_MAX} certificates; remove some");
        tls.fault("certificates", what);
    }
    let clients = clients(tls);
    let tls12 = tls.key(&rows::MIN_VERSION);
    Some(FrontTls { plain, certificates, clients, tls12 })
}

/// Reads `certificates`: those after the first one.
fn further(tls: &mut SectionReader<'_, '_>) -> Vec<(PathBuf, PathBuf)> {
    let Some(nodes) = tls.nodes_of(&rows::CERTIFICATES) else { return Vec::new() };
    let read = tls.sections(&rows::CERTIFICATES, nodes, |one| {
        for key in ["cert", "key"] {
            if !one.has(key) {
                one.fault(key, format!("a certificate needs `{key}`: a file in PEM"));
            }
        }
        one.key(&rows::REQUIRED_CERT).zip(one.key(&rows::REQUIRED_KEY))
    });
    read.into_iter().flatten().collect()
}

/// Reads which clients are accepted.
fn clients(tls: &mut SectionReader<'_, '_>) -> Option<TlsClients> {
    let ca = tls.key(&rows::CLIENT_CA);
    let name = tls.key(&rows::CLIENT_NAME);
    if name.is_some() && ca.is_none() {
        let what = "needs `ca`: the authorities of the certificates of clients";
        tls.fault_of("client_name", what);
    }
    ca.map(|ca| TlsClients { ca, name })
}

/// Reads the keys of a TLS client.
pub fn client(tls: &mut SectionReader<'_, '_>) -> ClientTls {
    let ca = tls.key(&rows::CA);
    let cert = tls.key(&rows::OWN_CERT);
    let key = tls.key(&rows::OWN_KEY);
    let name = tls.key(&rows::SERVER_NAME);
    match (&cert, &key) {
        (Some(_), None) => tls.fault_of("cert", "needs `key`: its private key, in PEM"),
        (None, Some(_)) => tls.fault_of("key", "needs `cert`: its certificate, in PEM"),
        _ => {}
    }
    ClientTls { ca, identity: cert.zip(key), name }
}
