//! The bytes of tickets and passes, and their text in a cookie.
//!
//! ```text
//! token  = base64url(body  tag), without padding
//! body   = version:u8 = 1  kind:u8  key:u8  fields          numbers are big-endian
//! ticket = kind 1: first_came:u64  id:u64                    47 characters
//! pass   = kind 2: issued:u64  stamp:u64  id:u64  count:u8  network:u32 x 4     80 characters
//! tag    = the first 16 bytes of HMAC-SHA256 over the body
//! ```
//!
//! Times are nanoseconds since the Unix epoch. A token has exactly one text: other lengths, other
//! versions and padding are refused. The tag is verified in `keys`, before any field is read.

use super::networks::{NETWORKS_MAX, PassNetworks};
use super::proof::{PassProof, VisitToken};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_core::queue::standing::{VisitPass, VisitTicket};
use evenkeel_core::units::Time;

/// The version of this form.
const VERSION: u8 = 1;
const KIND_TICKET: u8 = 1;
const KIND_PASS: u8 = 2;
/// The length of the version, the kind and the key.
const HEAD_BYTES: usize = 3;
const TICKET_BYTES: usize = HEAD_BYTES + 2 * 8;
const PASS_BYTES: usize = HEAD_BYTES + 3 * 8 + 1 + 4 * NETWORKS_MAX;
/// The length of a tag: 128 bits are not guessed.
pub(super) const TAG_BYTES: usize = 16;
/// The length of the longest token, with its tag.
const SIGNED_BYTES_MAX: usize = PASS_BYTES + TAG_BYTES;
/// The length of the longest token in a cookie, in characters.
pub const TOKEN_BYTES_MAX: usize = SIGNED_BYTES_MAX.div_ceil(3) * 4;

/// A token as bytes. Its tag may be wrong.
pub(super) struct SignedToken {
    bytes: [u8; SIGNED_BYTES_MAX],
    /// The length of the body. The tag follows.
    body: usize,
}

impl SignedToken {
    /// Decodes the value of a cookie. `None` if it is no token of this version.
    pub fn decode(text: &[u8]) -> Option<SignedToken> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; SIGNED_BYTES_MAX];
        let len = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        let body = match bytes[..len] {
            [VERSION, KIND_TICKET, ..] => TICKET_BYTES,
            [VERSION, KIND_PASS, ..] => PASS_BYTES,
            _ => return None,
        };
        (len == body + TAG_BYTES).then_some(SignedToken { bytes, body })
    }

    /// The bytes of a token, with a tag of zeros.
    pub fn new(token: VisitToken, key: u8) -> SignedToken {
        let mut bytes = [0; SIGNED_BYTES_MAX];
        let kind = match token {
            VisitToken::Ticket(_) => KIND_TICKET,
            VisitToken::Pass(_) => KIND_PASS,
        };
        bytes[..HEAD_BYTES].copy_from_slice(&[VERSION, kind, key]);
        let mut at = HEAD_BYTES;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        match token {
            VisitToken::Ticket(VisitTicket { first_came, id }) => {
                [first_came.0, id].iter().for_each(|field| put(&field.to_be_bytes()));
            }
            VisitToken::Pass(PassProof { pass: VisitPass { id, stamp }, issued, networks }) => {
                [issued.0, stamp.0, id].iter().for_each(|field| put(&field.to_be_bytes()));
                put(&[networks.count]);
                networks.list.iter().for_each(|network| put(&network.to_be_bytes()));
            }
        }
        SignedToken { bytes, body: at }
    }

    /// The number of the key that signed the token.
    pub fn key(&self) -> u8 {
        self.bytes[HEAD_BYTES - 1]
    }

    /// The bytes that the tag covers.
    pub fn body(&self) -> &[u8] {
        &self.bytes[..self.body]
    }

    pub fn tag(&self) -> &[u8] {
        &self.bytes[self.body..self.body + TAG_BYTES]
    }

    /// Sets the tag and writes the token as text.
    pub fn sign(mut self, tag: &[u8; TAG_BYTES]) -> String {
        let end = self.body + TAG_BYTES;
        self.bytes[self.body..end].copy_from_slice(tag);
        URL_SAFE_NO_PAD.encode(&self.bytes[..end])
    }

    /// Reads the fields. `None` if no writer makes such a token.
    pub fn fields(&self) -> Option<VisitToken> {
        let number = |index: usize| {
            let at = HEAD_BYTES + index * 8;
            let bytes = self.body().get(at..at + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        let (first, second) = (number(0)?, number(1)?);
        if self.body == TICKET_BYTES {
            return Some(VisitToken::Ticket(VisitTicket { first_came: Time(first), id: second }));
        }
        let (count, list) = self.body().get(HEAD_BYTES + 3 * 8..)?.split_first()?;
        let mut networks = [0; NETWORKS_MAX];
        for (network, bytes) in networks.iter_mut().zip(list.chunks_exact(4)) {
            *network = u32::from_be_bytes(bytes.try_into().ok()?);
        }
        let networks = PassNetworks::read(networks, *count)?;
        let pass = VisitPass { id: number(2)?, stamp: Time(second) };
        Some(VisitToken::Pass(PassProof { pass, issued: Time(first), networks }))
    }
}

#[cfg(test)]
impl SignedToken {
    /// Overwrites the fields.
    pub fn overwrite(&mut self, bytes: &[u8]) {
        let fields = &mut self.bytes[HEAD_BYTES..self.body];
        fields.iter_mut().zip(bytes).for_each(|(field, byte)| *field = *byte);
    }
}
