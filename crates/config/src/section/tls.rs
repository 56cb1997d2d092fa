//! The `tls` sections: for doors, their certificates and the clients that they accept; for outgoing
//! connections, the servers that are trusted.
//!
//! Only paths are read here; the module `tls` reads the files. The `tls` of peers is read in
//! `peers`, because there both ends have the same settings.

use crate::address;
use crate::reader::{Read, SectionReader, one_of};
use crate::settings::tls::{ClientTls, FrontTls, ServerTls, TlsClients};
use crate::tree::YamlValue;
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
    let cert = tls.optional("cert", super::path);
    let key = tls.optional("key", super::path);
    let clients = clients(tls);
    Some(ServerTls { cert: cert?, key: key?, clients })
}

/// Reads the `tls` section of the proxy: several certificates, and the addresses that use TLS.
/// `listen` holds the addresses of the door. All of them use TLS unless the section has addresses
/// of its own; those are appended to `listen`.
pub fn front(tls: &mut SectionReader<'_, '_>, listen: &mut Vec<SocketAddr>) -> Option<FrontTls> {
    let own = tls.values("listen", address::listen);
    let plain = if own.is_empty() { 0 } else { listen.len() };
    listen.extend(own);
    let mut certificates = Vec::new();
    match (tls.optional("cert", super::path), tls.optional("key", super::path)) {
        (Some(cert), Some(key)) => certificates.push((cert, key)),
        (None, None) => {}
        (Some(_), None) => tls.fault("cert", "`cert` needs `key`: a file in PEM"),
        (None, Some(_)) => tls.fault("key", "`key` needs `cert`: a file in PEM"),
    }
    certificates.extend(further(tls));
    if certificates.is_empty() {
        tls.fault("cert", "`tls` needs `cert` and `key`: files in PEM");
    } else if certificates.len() > CERTIFICATES_MAX {
        let what = format!("more than {CERTIFICATES_MAX} certificates; remove some");
        tls.fault("certificates", what);
    }
    let clients = clients(tls);
    let versions = [("1.2", MinTlsVersion("1.2")), ("1.3", MinTlsVersion("1.3"))];
    let oldest = tls.value("min_version", MinTlsVersion("1.2"), |text| one_of(text, &versions));
    let tls12 = oldest.0 == "1.2";
    Some(FrontTls { plain, certificates, clients, tls12 })
}

/// The oldest TLS version that is accepted, as it is written.
#[derive(Clone)]
struct MinTlsVersion(&'static str);

impl std::fmt::Display for MinTlsVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Reads `certificates`: those after the first one.
fn further(tls: &mut SectionReader<'_, '_>) -> Vec<(PathBuf, PathBuf)> {
    let Some(node) = tls.node("certificates") else { return Vec::new() };
    let nodes = match &node.value {
        YamlValue::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let read = tls.sections("certificates", nodes, |one| {
        for key in ["cert", "key"] {
            if !one.has(key) {
                one.fault(key, format!("a certificate needs `{key}`: a file in PEM"));
            }
        }
        one.optional("cert", super::path).zip(one.optional("key", super::path))
    });
    read.into_iter().flatten().collect()
}

/// Reads which clients are accepted.
fn clients(tls: &mut SectionReader<'_, '_>) -> Option<TlsClients> {
    let ca = tls.optional("ca", super::path);
    let name = tls.optional("client_name", name);
    if name.is_some() && ca.is_none() {
        let what = "`client_name` needs `ca`: whose certificates clients show";
        tls.fault("client_name", what);
    }
    ca.map(|ca| TlsClients { ca, name })
}

/// Reads the keys of a TLS client.
pub fn client(tls: &mut SectionReader<'_, '_>) -> ClientTls {
    let ca = tls.optional("ca", super::path);
    let cert = tls.optional("cert", super::path);
    let key = tls.optional("key", super::path);
    let name = tls.optional("server_name", name);
    match (&cert, &key) {
        (Some(_), None) => tls.fault("cert", "`cert` needs `key`: its private key, in PEM"),
        (None, Some(_)) => tls.fault("key", "`key` needs `cert`: what it is the key of, in PEM"),
        _ => {}
    }
    ClientTls { ca, identity: cert.zip(key), name }
}

/// Reads a DNS name as certificates contain it.
fn name(text: &str) -> Read<String> {
    let good = rustls::pki_types::DnsName::try_from(text).is_ok();
    good.then(|| text.to_owned()).ok_or_else(|| "write a DNS name: envoy.example".to_owned())
}
