//! The fields of a signed request: `Signature-Input`, `Signature` and `Signature-Agent`, read as
//! structured fields (RFC 9651) within bounds.
//!
//! A request may carry several signatures under different labels. Only those with the tag
//! `web-bot-auth` are read; others belong to other protocols and are no fault. The components that
//! a signature covers are in `base`. `Signature-Agent` is a dictionary; the bare string of earlier
//! drafts counts as its only member.

use super::fault::SignatureFault;
use http::HeaderMap;
use sfv::{Dictionary, InnerList, Item, ListEntry, Parser};

/// Length of each of the three fields, all of their lines joined.
const FIELD_BYTES_MAX: usize = 4096;
/// Members of a field.
const MEMBERS_MAX: usize = 8;
/// Signatures with the tag of Web Bot Auth; each costs a verification. Real requests have one.
const SIGNATURES_MAX: usize = 2;
/// Components of a signature.
const COMPONENTS_MAX: usize = 32;
/// Characters of a nonce. The draft's examples have 88.
const NONCE_BYTES_MAX: usize = 512;

pub(super) const SIGNATURE_INPUT: &str = "signature-input";
const SIGNATURE: &str = "signature";
pub(super) const SIGNATURE_AGENT: &str = "signature-agent";
const TAG: &str = "web-bot-auth";
const ALGORITHM: &str = "ed25519";

/// One signature with the tag of Web Bot Auth.
pub(super) struct SignatureFields {
    /// The label in `Signature-Input`.
    pub label: String,
    /// The components and parameters.
    pub input: InnerList,
    /// The signature itself.
    pub value: Vec<u8>,
}

/// The parameters of a signature.
pub(super) struct SignatureTerms<'a> {
    pub created: u64,
    pub expires: u64,
    pub key_id: &'a str,
    pub nonce: Option<&'a str>,
}

/// Where a signer says that its keys are.
pub(super) struct SignatureAgents(Dictionary, bool);

/// The length of the lines of a field together, without what joins them. 0 if the request has no
/// such field.
pub(super) fn length(headers: &HeaderMap, name: &str) -> usize {
    headers.get_all(name).iter().map(http::HeaderValue::len).sum()
}

/// The lines of a field, joined as RFC 9421, 2.1 joins them. `None` if the request has no such
/// field.
pub(super) fn joined(headers: &HeaderMap, name: &str) -> Option<Vec<u8>> {
    let mut lines = headers.get_all(name).iter();
    let mut all = lines.next()?.as_bytes().trim_ascii().to_vec();
    for line in lines {
        all.extend_from_slice(b", ");
        all.extend_from_slice(line.as_bytes().trim_ascii());
    }
    Some(all)
}

/// Parses a field as a dictionary of bounded size.
fn dictionary(field: &[u8]) -> Result<Dictionary, SignatureFault> {
    if field.len() > FIELD_BYTES_MAX {
        return Err(SignatureFault::Malformed);
    }
    let members: Dictionary = Parser::new(field).parse().map_err(|_| SignatureFault::Malformed)?;
    if members.len() > MEMBERS_MAX { Err(SignatureFault::Malformed) } else { Ok(members) }
}

/// The signatures of a request that carry the tag of Web Bot Auth; none if it has none.
///
/// # Errors
/// A field is malformed, or a signature without a value.
pub(super) fn signatures(headers: &HeaderMap) -> Result<Vec<SignatureFields>, SignatureFault> {
    let Some(inputs) = joined(headers, SIGNATURE_INPUT) else { return Ok(Vec::new()) };
    let mut values = match joined(headers, SIGNATURE) {
        Some(field) => dictionary(&field)?,
        None => Dictionary::new(),
    };
    let mut found = Vec::new();
    for (label, member) in dictionary(&inputs)? {
        let ListEntry::InnerList(input) = member else { return Err(SignatureFault::Malformed) };
        let tag = input.params.get("tag").and_then(|tag| tag.as_string());
        if tag.is_none_or(|tag| tag.as_str() != TAG) {
            continue;
        }
        let Some(ListEntry::Item(Item { bare_item: sfv::BareItem::ByteSequence(value), .. })) =
            values.swap_remove(&label)
        else {
            return Err(SignatureFault::Malformed);
        };
        if input.items.len() > COMPONENTS_MAX || found.len() == SIGNATURES_MAX {
            return Err(SignatureFault::Malformed);
        }
        found.push(SignatureFields { label: label.into(), input, value });
    }
    Ok(found)
}

impl SignatureFields {
    /// The parameters, of which Web Bot Auth requires all but `nonce` and `alg`.
    ///
    /// # Errors
    /// A parameter is missing or has another type, or the algorithm is not Ed25519.
    pub fn terms(&self) -> Result<SignatureTerms<'_>, SignatureFault> {
        let text = |name: &str| match self.input.params.get(name) {
            None => Ok(None),
            Some(value) => {
                let text = value.as_string().map(sfv::StringRef::as_str);
                text.map(Some).ok_or(SignatureFault::Malformed)
            }
        };
        let moment = |name: &str| match self.input.params.get(name) {
            None => Err(SignatureFault::MissingComponent),
            Some(value) => {
                let seconds = value.as_integer().map(i64::from);
                seconds.and_then(|s| u64::try_from(s).ok()).ok_or(SignatureFault::Malformed)
            }
        };
        if text("alg")?.is_some_and(|algorithm| algorithm != ALGORITHM) {
            return Err(SignatureFault::Unsupported);
        }
        let (created, expires) = (moment("created")?, moment("expires")?);
        let key_id = text("keyid")?.ok_or(SignatureFault::MissingComponent)?;
        let nonce = text("nonce")?;
        if expires <= created || nonce.is_some_and(|nonce| nonce.len() > NONCE_BYTES_MAX) {
            return Err(SignatureFault::Malformed);
        }
        Ok(SignatureTerms { created, expires, key_id, nonce })
    }
}

impl SignatureAgents {
    /// Reads `Signature-Agent`; `None` if the request has none.
    ///
    /// # Errors
    /// It is neither a dictionary nor a string.
    pub fn read(headers: &HeaderMap) -> Result<Option<SignatureAgents>, SignatureFault> {
        let Some(field) = joined(headers, SIGNATURE_AGENT) else { return Ok(None) };
        if field.first() != Some(&b'"') {
            return Ok(Some(SignatureAgents(dictionary(&field)?, false)));
        }
        if field.len() > FIELD_BYTES_MAX {
            return Err(SignatureFault::Malformed);
        }
        let item: Item = Parser::new(&field).parse().map_err(|_| SignatureFault::Malformed)?;
        let label = sfv::key_ref("sig").to_owned();
        Ok(Some(SignatureAgents([(label, ListEntry::Item(item))].into_iter().collect(), true)))
    }

    /// The host of the key directory that a signature names: the member for `key`, if the signature
    /// covers one member, else the one of its own label, else the only one. `None` if the member is
    /// no directory at an `https` origin.
    pub fn directory(&self, key: Option<&str>, label: &str) -> Option<&str> {
        let SignatureAgents(members, legacy) = self;
        let only = || if *legacy || members.len() == 1 { members.values().next() } else { None };
        let member = match key {
            Some(key) => members.get(key),
            None => members.get(label).filter(|_| !legacy).or_else(only),
        };
        let ListEntry::Item(item) = member? else { return None };
        let kind = item.params.get("type");
        let is_directory =
            |kind: &sfv::BareItem| kind.as_token().is_some_and(|kind| kind.as_str() == "directory");
        if !kind.is_none_or(is_directory) {
            return None;
        }
        let origin = item.bare_item.as_string()?.as_str().strip_prefix("https://")?;
        let host = origin.strip_suffix('/').unwrap_or(origin);
        (!host.is_empty() && !host.contains(['/', '?', '#', '@'])).then_some(host)
    }
}
