//! What an authority asks for to check that a name leads here: a token over HTTP (RFC 8555, 8.3),
//! or a certificate in a TLS handshake for [`PROTOCOL`] (RFC 8737).
//!
//! The crate `acme` puts what its orders need here, and the proxy shows it. Any other request for a
//! token is one for the backend, which may have certificates of its own.

use parking_lot::Mutex;
use rustls::Error;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// The protocol (ALPN) that an authority offers, as the only one, to check a name.
pub const PROTOCOL: &[u8] = b"acme-tls/1";

/// The path below which an authority asks for a token.
const PATH: &str = "/.well-known/acme-challenge/";
/// Maximum number of tokens, and of certificates; an order has one for each name.
const CHALLENGES_MAX: usize = 1_000;

/// The token that a path asks for. `None` for all other paths: a token consists of the characters
/// of base64url, so that no path with further segments, dots or encoded characters is one.
#[must_use]
pub fn token(path: &str) -> Option<&str> {
    let token = path.strip_prefix(PATH)?;
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (!token.is_empty() && token.bytes().all(is_one)).then_some(token)
}

/// What the authorities of all orders that are open may ask for.
#[derive(Debug, Default)]
pub struct OpenChallenges {
    /// Texts that prove the account, by token.
    tokens: Mutex<HashMap<Box<str>, Box<str>>>,
    /// Certificates that prove the account, by name in lower case.
    certificates: Mutex<HashMap<Box<str>, Arc<CertifiedKey>>>,
}

impl OpenChallenges {
    /// Adds a token. Beyond the maximum number it is left out.
    pub fn put(&self, token: &str, text: &str) {
        put(&self.tokens, token.into(), text.into());
    }

    /// Adds the certificate of a name, which is in lower case, and its key (PKCS#8), both in DER.
    /// Beyond the maximum number it is left out.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn put_certificate(&self, name: &str, cert: Vec<u8>, key: Vec<u8>) -> Result<(), Error> {
        let key = PrivateKeyDer::Pkcs8(key.into());
        let key = crate::provider::provider().key_provider.load_private_key(key)?;
        // It is not examined: its extension is one that no client of a site understands.
        let certified = CertifiedKey::new(vec![cert.into()], key);
        put(&self.certificates, name.into(), Arc::new(certified));
        Ok(())
    }

    /// Removes a token, or the certificate of a name.
    pub fn remove(&self, token_or_name: &str) {
        self.tokens.lock().remove(token_or_name);
        self.certificates.lock().remove(token_or_name);
    }

    /// The text for a path, if it is that of a token.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<Box<str>> {
        self.tokens.lock().get(token(path)?).cloned()
    }

    /// The certificate for a name.
    #[must_use]
    pub fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.certificates.lock().get(&*name.to_ascii_lowercase()).cloned()
    }
}

fn put<K: Hash + Eq, V>(challenges: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut challenges = challenges.lock();
    if challenges.len() < CHALLENGES_MAX {
        challenges.insert(key, value);
    }
}

/// Whether a handshake is one of an authority.
#[must_use]
pub fn is_check(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|offered| offered.eq([PROTOCOL]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_token_is_asked_for() {
        assert_eq!(token("/.well-known/acme-challenge/aZ09-_"), Some("aZ09-_"));
        for rest in
            ["", ".", "..", "../x", "a/", "a/../../x", "%2e%2e", "a%2F", "a\\..", "a;b", "a.b"]
        {
            assert_eq!(token(&format!("/.well-known/acme-challenge/{rest}")), None, "{rest}");
        }
        for path in ["/.well-known/acme-challenge", "/.WELL-known/acme-challenge/a", "/a", ""] {
            assert_eq!(token(path), None, "{path}");
        }
    }

    #[test]
    fn tokens_are_served_until_they_are_taken_back() {
        let tokens = OpenChallenges::default();
        tokens.put("abc", "abc.key");
        let at = |path: &str| tokens.text(path);
        assert_eq!(at("/.well-known/acme-challenge/abc").as_deref(), Some("abc.key"));
        for other in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/abcd", "/abc"] {
            assert_eq!(at(other), None, "{other}");
        }
        tokens.remove("abc");
        assert_eq!(at("/.well-known/acme-challenge/abc"), None);
        (0..2_000).for_each(|number| tokens.put(&number.to_string(), ""));
        assert_eq!(tokens.tokens.lock().len(), CHALLENGES_MAX);
    }
}
