//! The verdict on the signatures of a request.
//!
//! `verify` is a function of the request, the keys and the time. The caller then asks `SeenNonces`
//! whether the nonce is new. A signature without a nonce is accepted as often as it comes until it
//! expires, since the draft makes nonces optional.

use super::base::{Covered, CoveredAgent, SignedRequest, base};
use super::fault::SignatureFault;
use super::fields::{
    SIGNATURE_INPUT, SignatureAgents, SignatureFields, SignatureTerms, signatures,
};
use super::keys::RobotKeys;
use super::nonces::SeenNonces;
use super::sources::Sources;
use evenkeel_core::units::{Nanos, SECOND, Time};

/// How far `created` may lie ahead.
pub const CLOCK_SKEW_MAX: Nanos = Nanos::from_secs(30);
/// The longest time between `created` and `expires`, which the draft recommends.
pub const LIFETIME_MAX: Nanos = Nanos::from_secs(86_400);

/// A robot that has signed a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRobot {
    /// The number of the robot, as its keys were added.
    pub robot: u16,
    /// The thumbprint of its key.
    pub key_id: Box<str>,
    /// The nonce, if the signature has one.
    pub nonce: Option<Box<str>>,
    /// When the signature expires, in seconds of Unix time.
    pub expires: u64,
}

/// Which robot has signed the request; `None` if it has no signature. If there are several
/// signatures with the tag `web-bot-auth`, one that is valid is enough.
///
/// # Errors
/// Why the first signature with this tag proves nothing, or that none has the tag.
pub fn verify(
    request: &SignedRequest<'_>,
    keys: &RobotKeys,
    now: Time,
) -> Result<Option<VerifiedRobot>, SignatureFault> {
    if !request.headers.contains_key(SIGNATURE_INPUT) {
        return Ok(None);
    }
    let agents = SignatureAgents::read(request.headers)?;
    let (mut sources, mut first) = (Sources::new(request), None);
    for signature in signatures(request.headers)? {
        match verify_one(&mut sources, &signature, agents.as_ref(), keys, now) {
            Ok(robot) => return Ok(Some(robot)),
            Err(fault) => first = first.or(Some(fault)),
        }
    }
    Err(first.unwrap_or(SignatureFault::OtherTag))
}

/// Verifies a signature. The request is read last, when the key and all else is found to be good:
/// a signature with an unknown key costs little, whatever it covers.
fn verify_one(
    sources: &mut Sources<'_>,
    signature: &SignatureFields,
    agents: Option<&SignatureAgents>,
    keys: &RobotKeys,
    now: Time,
) -> Result<VerifiedRobot, SignatureFault> {
    let terms = signature.terms()?;
    let covered = Covered::of(&signature.input)?;
    let member = match (&covered.agent, agents) {
        _ if !covered.authority => return Err(SignatureFault::MissingComponent),
        (CoveredAgent::Not, Some(_)) => return Err(SignatureFault::MissingComponent),
        (CoveredAgent::Member(key), _) => Some(key.as_str()),
        (CoveredAgent::Not | CoveredAgent::Whole, _) => None,
    };
    let agent = agents.and_then(|agents| agents.directory(member, &signature.label));
    let second = now.0 / SECOND;
    let owned = keys.find(terms.key_id, agent).ok_or(SignatureFault::UnknownKey)?;
    if owned.key.expires.is_some_and(|expires| second > expires) {
        return Err(SignatureFault::UnknownKey);
    }
    check_times(&terms, second)?;
    if !keys.serves(sources.request.host()) {
        return Err(SignatureFault::WrongAuthority);
    }
    let base = base(sources, &signature.input)?;
    let checked = owned.key.key.verify_sig(&base, &signature.value);
    checked.map_err(|_| SignatureFault::BadSignature)?;
    Ok(VerifiedRobot {
        robot: owned.robot,
        key_id: terms.key_id.into(),
        nonce: terms.nonce.map(Into::into),
        expires: terms.expires,
    })
}

fn check_times(terms: &SignatureTerms<'_>, second: u64) -> Result<(), SignatureFault> {
    if terms.expires - terms.created > LIFETIME_MAX.0 / SECOND {
        Err(SignatureFault::LifetimeTooLong)
    } else if terms.created > second + CLOCK_SKEW_MAX.0 / SECOND {
        Err(SignatureFault::NotYetValid)
    } else if second > terms.expires {
        Err(SignatureFault::Expired)
    } else {
        Ok(())
    }
}

impl VerifiedRobot {
    /// Uses up the nonce of the signature, if it has one.
    ///
    /// # Errors
    /// It was used before.
    pub fn use_up(&self, seen: &SeenNonces, now: Time) -> Result<(), SignatureFault> {
        let Some(nonce) = &self.nonce else { return Ok(()) };
        let first = seen.use_once(&self.key_id, nonce, self.expires, now.0 / SECOND);
        if first { Ok(()) } else { Err(SignatureFault::Replayed) }
    }
}
