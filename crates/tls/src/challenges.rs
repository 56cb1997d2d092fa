//! What an authority asks for to check that a name leads here (RFC 8555, 8.3).
//!
//! The crate `acme` puts the tokens of its orders here, and the proxy serves them. Any other
//! request below [`PATH`] is one for the backend, which may have certificates of its own.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The path below which an authority asks for a token.
pub const PATH: &str = "/.well-known/acme-challenge/";
/// Maximum number of tokens; an order has one for each name.
const TOKENS_MAX: usize = 1_000;

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
        let token = path.strip_prefix(PATH)?;
        self.0.lock().get(token).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
