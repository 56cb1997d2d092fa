//! The keys that sign tickets and passes, and the check of what a visitor brings.
//!
//! A key follows from a secret: the seed of this instance, which `state` keeps, or the lines of a
//! file that several machines have. The first secret signs and all verify, so a secret is replaced
//! without a loss: the new one is added as the second line everywhere, then becomes the first, and
//! the old one is removed after the longest life of a pass. The number of a key is one byte of a
//! hash of it. It saves the check of other keys, and proves nothing.

use super::cookie;
use super::networks::network_of;
use super::proof::{PASS_AGE_MAX, PassProof, VisitProof, VisitToken, is_recent};
use super::token::{SignedToken, TAG_BYTES};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use evenkeel_config::secret::SECRETS_MAX;
use evenkeel_core::queue::standing::{TICKET_AGE_MAX, VisitTicket};
use evenkeel_core::units::Time;
use std::net::IpAddr;

/// The purpose of a key. A secret that has other uses gives different keys for them.
const PURPOSE: &[u8] = b"evenkeel: tickets and passes, 1";
/// The text from which the number of a key is derived.
const NUMBER: &[u8] = b"number of the key";

/// The keys that are accepted, the signing one first.
pub struct VisitKeys {
    signing: VisitKey,
    others: Vec<VisitKey>,
}

struct VisitKey {
    key: hmac::Key,
    number: u8,
}

impl VisitKey {
    fn new(secret: &[u8]) -> VisitKey {
        let derived = hmac::sign(&hmac::Key::new(HMAC_SHA256, secret), PURPOSE);
        let key = hmac::Key::new(HMAC_SHA256, derived.as_ref());
        let number = hmac::sign(&key, NUMBER).as_ref().first().copied().unwrap_or_default();
        VisitKey { key, number }
    }

    fn tag(&self, body: &[u8]) -> [u8; TAG_BYTES] {
        let whole = hmac::sign(&self.key, body);
        let mut tag = [0; TAG_BYTES];
        tag.iter_mut().zip(whole.as_ref()).for_each(|(byte, of)| *byte = *of);
        tag
    }

    /// Whether this key has signed the token. Takes the same time for all wrong tags.
    fn verifies(&self, token: &SignedToken) -> bool {
        token.key() == self.number
            && verify_slices_are_equal(&self.tag(token.body()), token.tag()).is_ok()
    }
}

impl VisitKeys {
    /// Makes the keys of secrets that an outsider must not know: the one that signs, and others
    /// that are accepted. At most [`SECRETS_MAX`] are used in all.
    #[must_use]
    pub fn new(signing: &[u8], others: &[&[u8]]) -> VisitKeys {
        let others = others.iter().take(SECRETS_MAX - 1).map(|secret| VisitKey::new(secret));
        VisitKeys { signing: VisitKey::new(signing), others: others.collect() }
    }

    /// The text of a ticket.
    #[must_use]
    pub fn ticket(&self, ticket: VisitTicket) -> String {
        self.sign(VisitToken::Ticket(ticket))
    }

    /// The text of a pass.
    #[must_use]
    pub fn pass(&self, pass: PassProof) -> String {
        self.sign(VisitToken::Pass(pass))
    }

    fn sign(&self, token: VisitToken) -> String {
        let token = SignedToken::new(token, self.signing.number);
        let tag = self.signing.tag(token.body());
        token.sign(&tag)
    }

    /// The proof in the cookies of a request from `client`. `lines` are its `Cookie` headers. The
    /// first cookie with a proof counts; at most [`cookie::CANDIDATES_MAX`] are checked.
    pub fn proof<'a>(
        &self,
        lines: impl Iterator<Item = &'a [u8]>,
        client: IpAddr,
        now: Time,
    ) -> VisitProof {
        let proofs = cookie::values(lines).map(|value| self.proof_of(value, client, now));
        let mut moved = VisitProof::Nothing;
        for proof in proofs {
            match proof {
                VisitProof::Ticket(_) | VisitProof::Pass(_) => return proof,
                VisitProof::Moved(_) => moved = proof,
                VisitProof::Nothing => {}
            }
        }
        moved
    }

    /// The proof in one value.
    fn proof_of(&self, value: &[u8], client: IpAddr, now: Time) -> VisitProof {
        match self.open(value) {
            Some(VisitToken::Ticket(ticket))
                if is_recent(ticket.first_came, TICKET_AGE_MAX, now) =>
            {
                // The queue takes no ticket from the future.
                VisitProof::Ticket(VisitTicket { first_came: ticket.first_came.min(now), ..ticket })
            }
            Some(VisitToken::Pass(pass)) if is_recent(pass.issued, PASS_AGE_MAX, now) => {
                let network = network_of(client);
                if pass.networks.contains(network) {
                    return VisitProof::Pass(pass.pass);
                }
                pass.moved(network, now).map_or(VisitProof::Nothing, VisitProof::Moved)
            }
            _ => VisitProof::Nothing,
        }
    }

    /// Reads a token if one of the keys has signed it.
    pub(super) fn open(&self, value: &[u8]) -> Option<VisitToken> {
        let token = SignedToken::decode(value)?;
        let mut keys = std::iter::once(&self.signing).chain(&self.others);
        keys.any(|key| key.verifies(&token)).then(|| token.fields())?
    }
}

#[cfg(test)]
impl VisitKeys {
    /// A token with its fields overwritten by `bytes` before it is signed.
    pub(super) fn sign_changed(&self, token: VisitToken, bytes: &[u8]) -> String {
        let mut token = SignedToken::new(token, self.signing.number);
        token.overwrite(bytes);
        let tag = self.signing.tag(token.body());
        token.sign(&tag)
    }
}
