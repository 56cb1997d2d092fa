//! Selects the certificate for a client by the name that it requests (SNI).
//!
//! The names come from the certificates themselves, including wildcards, and are compared by the
//! same library that verifies certificates. They are tried in order, preferring those with a key
//! type that the client can verify. Without a requested name, or if no certificate has it, the
//! first one is used. The search takes microseconds per certificate, next to hundreds for the
//! signature. An authority that checks a name (`challenges`) gets the certificate that it asks for.

use super::challenges::{self, OpenChallenges};
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// The certificates to select from, in order of preference.
#[derive(Debug)]
pub struct CertificatesByName {
    keys: Vec<Arc<CertifiedKey>>,
    challenges: Arc<OpenChallenges>,
}

impl CertificatesByName {
    /// Creates the list; the order is kept.
    pub fn new(
        keys: impl Iterator<Item = CertifiedKey>,
        challenges: Arc<OpenChallenges>,
    ) -> CertificatesByName {
        CertificatesByName { keys: keys.map(Arc::new).collect(), challenges }
    }

    fn choose(
        &self,
        name: Option<&str>,
        can: impl Fn(&CertifiedKey) -> bool,
    ) -> Option<&Arc<CertifiedKey>> {
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let named = |key: &&Arc<CertifiedKey>| name.as_ref().is_some_and(|name| is_for(key, name));
        let able = |key: &&Arc<CertifiedKey>| can(key);
        // A single certificate is used without parsing it.
        let [_, _, ..] = self.keys.as_slice() else { return self.keys.first() };
        let mut fitting = self.keys.iter().filter(named);
        let first = fitting.clone().next();
        let both = fitting.find(able);
        let any = || self.keys.iter().find(able).filter(|_| first.is_none());
        both.or_else(any).or(first).or(self.keys.first())
    }
}

/// Whether the certificate is valid for a name.
pub fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = key.end_entity_cert().and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|parsed| verify_server_name(&parsed, name).is_ok())
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if challenges::is_check(&hello) {
            return self.challenges.certificate(hello.server_name()?);
        }
        let schemes = hello.signature_schemes();
        let can = |key: &CertifiedKey| key.key.choose_scheme(schemes).is_some();
        self.choose(hello.server_name(), can).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};

    fn key(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> CertifiedKey {
        let pair = KeyPair::generate_for(algorithm).expect("a key");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = CertificateParams::new(names).expect("names").self_signed(&pair).expect("made");
        let private =
            rustls::pki_types::PrivateKeyDer::try_from(pair.serialize_der()).expect("DER");
        let private = crate::provider::provider().key_provider.load_private_key(private);
        CertifiedKey::new(vec![made.der().clone()], private.expect("loads"))
    }

    #[test]
    fn the_certificate_is_that_of_the_name() {
        let (ecdsa, other) = (&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519);
        let keys = [
            key(&["a.example"], ecdsa),
            key(&["*.b.example", "b.example"], other),
            key(&["b.example"], ecdsa),
        ];
        let names = CertificatesByName::new(keys.into_iter(), Arc::default());
        let chosen = |name: Option<&str>, can: &dyn Fn(&CertifiedKey) -> bool| {
            let key = names.choose(name, can).expect("one");
            names.keys.iter().position(|known| Arc::ptr_eq(known, key)).expect("of them")
        };
        let any = |_: &CertifiedKey| true;
        let ecdsa = |key: &CertifiedKey| key.key.algorithm() == rustls::SignatureAlgorithm::ECDSA;
        for (name, first, by_ecdsa) in [
            (Some("a.example"), 0, 0),
            (Some("A.Example"), 0, 0),
            (Some("b.example"), 1, 2),
            (Some("x.b.example"), 1, 1),
            (Some("x.y.b.example"), 0, 0),
            (Some("c.example"), 0, 0),
            (Some("127.0.0.1"), 0, 0),
            (None, 0, 0),
        ] {
            assert_eq!(chosen(name, &any), first, "{name:?}");
            assert_eq!(chosen(name, &ecdsa), by_ecdsa, "{name:?}");
        }
        let ed = |key: &CertifiedKey| !ecdsa(key);
        assert_eq!(chosen(None, &ed), 1, "who can verify only one kind gets that");
    }
}
