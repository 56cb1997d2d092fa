//! The `tls` sections: of doors, who they are and whom they let in; of what asks others, whom it
//! believes.
//!
//! Nothing is read here but names of files; `tls` reads the files. The `tls` of peers is theirs:
//! there both ends are the same.

use crate::config::reader::{Read, Section};
use crate::config::settings::tls::{ClientTls, ServerTls, TlsClients};

/// Reads the keys that all doors have.
pub fn server(tls: &mut Section<'_, '_>) -> Option<ServerTls> {
    for key in ["cert", "key"] {
        if !tls.has(key) {
            tls.fault(key, format!("`tls` needs `{key}`: a file in PEM"));
        }
    }
    let cert = tls.optional("cert", super::path);
    let key = tls.optional("key", super::path);
    let ca = tls.optional("ca", super::path);
    let name = tls.optional("client_name", name);
    if name.is_some() && ca.is_none() {
        let what = "`client_name` needs `ca`: whose certificates clients show";
        tls.fault("client_name", what);
    }
    let clients = ca.map(|ca| TlsClients { ca, name });
    Some(ServerTls { cert: cert?, key: key?, clients })
}

/// Reads the keys of what connects to others.
pub fn client(tls: &mut Section<'_, '_>) -> ClientTls {
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

/// A DNS name, as certificates are for.
fn name(text: &str) -> Read<String> {
    let good = rustls::pki_types::DnsName::try_from(text).is_ok();
    good.then(|| text.to_owned()).ok_or_else(|| "write a DNS name: envoy.example".to_owned())
}
