//! What an authority asks for to check that a name leads here (RFC 8555, 8.3).
//!
//! The crate `acme` puts the tokens of its orders here, and the proxy serves them. Any other
//! request for a token is one for the backend, which may have certificates of its own.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The path below which an authority asks for a token.
const PATH: &str = "/.well-known/acme-challenge/";
/// Maximum number of tokens; an order has one for each name.
const TOKENS_MAX: usize = 1_000;

/// The token that a path asks for. `None` for all other paths: a token consists of the characters
/// of base64url, so that no path with further segments, dots or encoded characters is one.
#[must_use]
pub fn token(path: &str) -> Option<&str> {
    let token = path.strip_prefix(PATH)?;
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (!token.is_empty() && token.bytes().all(is_one)).then_some(token)
}

/// The tokens of all orders, each with the text that proves the account.
#[derive(Debug, Default)]
pub struct ChallengeTokens(Mutex<HashMap<Box<str>, Box<str>>>);

impl ChallengeTokens {
    /// Adds a token. Beyond the maximum number it is left out.
    pub fn put(&self, token: &str, text: &str) {
        let mut tokens = self.0.lock();
        if tokens.len() < TOKENS_MAX {
            tokens.insert(token.into(), text.into());
        }
    }

    /// Removes a token.
    pub fn remove(&self, token: &str) {
        self.0.lock().remove(token);
    }

    /// The text for a path, if it is that of a token.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<Box<str>> {
        self.0.lock().get(token(path)?).cloned()
    }
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
        let tokens = ChallengeTokens::default();
        tokens.put("abc", "abc.key");
        let at = |path: &str| tokens.text(path);
        assert_eq!(at("/.well-known/acme-challenge/abc").as_deref(), Some("abc.key"));
        for other in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/abcd", "/abc"] {
            assert_eq!(at(other), None, "{other}");
        }
        tokens.remove("abc");
        assert_eq!(at("/.well-known/acme-challenge/abc"), None);
        (0..2_000).for_each(|number| tokens.put(&number.to_string(), ""));
        assert_eq!(tokens.0.lock().len(), TOKENS_MAX);
    }
}
