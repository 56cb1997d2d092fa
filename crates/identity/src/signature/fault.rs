//! Why a signature proves nothing: the names that metrics, the log and the page show.
//!
//! A fault says what is wrong with the signature, not who sent it: an honest robot with a wrong
//! clock and a forger get the same treatment. The checks are in `verify`.

use thiserror::Error;

/// Why the signature of a request proves nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum SignatureFault {
    /// `expires` has passed.
    #[error("the signature has expired")]
    Expired,
    /// `created` lies ahead by more than clocks differ.
    #[error("the signature is not yet valid")]
    NotYetValid,
    /// The request is for a host that is not one of this site.
    #[error("the request is for an authority that is not one of this site")]
    WrongAuthority,
    /// No robot has the key that `keyid` names, or not at the directory that `Signature-Agent`
    /// names, or the key has expired.
    #[error("no robot has this key")]
    UnknownKey,
    /// The signature does not fit the request: it was forged, or made for another request.
    #[error("the signature does not fit the request")]
    BadSignature,
    /// A field does not parse, contradicts itself, or exceeds a bound.
    #[error("a field of the signature is malformed")]
    Malformed,
    /// The signature does not cover what it must, or covers what the request does not have.
    #[error("a component or parameter that must be signed is missing")]
    MissingComponent,
    /// The signatures of the request cover more than 8192 bytes of its fields and target.
    #[error("the signature covers more of the request than is read for it")]
    CoversTooMuch,
    /// `expires` lies more than a day after `created`.
    #[error("the lifetime of the signature is too long")]
    LifetimeTooLong,
    /// The nonce was used before.
    #[error("the nonce of the signature was used before")]
    Replayed,
    /// An algorithm other than Ed25519, or a component that is not supported.
    #[error("the signature uses an algorithm or a component that is not supported")]
    Unsupported,
    /// No signature has the tag of Web Bot Auth.
    #[error("no signature has the tag `web-bot-auth`")]
    OtherTag,
}

impl SignatureFault {
    /// All faults.
    pub const ALL: [SignatureFault; 12] = [
        SignatureFault::Expired,
        SignatureFault::NotYetValid,
        SignatureFault::WrongAuthority,
        SignatureFault::UnknownKey,
        SignatureFault::BadSignature,
        SignatureFault::Malformed,
        SignatureFault::MissingComponent,
        SignatureFault::CoversTooMuch,
        SignatureFault::LifetimeTooLong,
        SignatureFault::Replayed,
        SignatureFault::Unsupported,
        SignatureFault::OtherTag,
    ];

    /// The name of the fault in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SignatureFault::Expired => "expired",
            SignatureFault::NotYetValid => "not_yet_valid",
            SignatureFault::WrongAuthority => "wrong_authority",
            SignatureFault::UnknownKey => "unknown_key",
            SignatureFault::BadSignature => "bad_signature",
            SignatureFault::Malformed => "malformed",
            SignatureFault::MissingComponent => "missing_component",
            SignatureFault::CoversTooMuch => "covers_too_much",
            SignatureFault::LifetimeTooLong => "lifetime_too_long",
            SignatureFault::Replayed => "replayed",
            SignatureFault::Unsupported => "unsupported",
            SignatureFault::OtherTag => "other_tag",
        }
    }
}
