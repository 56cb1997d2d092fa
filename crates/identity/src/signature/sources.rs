//! The parts of a request that signatures cover, read once per request and within a bound.
//!
//! A component names a field, a member of a field, a part of the target, or a parameter of the
//! query. Two signatures with 32 components each may name the same field or query again and again,
//! and any client can send them, since the ids of keys are public. So each field and the query are
//! parsed once, and their sizes count towards one sum for all signatures of the request. A
//! signature that needs more than the sum allows is refused.

use super::base::SignedRequest;
use super::fault::SignatureFault;
use super::fields::{joined, length};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sfv::{Dictionary, FieldType as _, Parser};
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Size of the fields and of the target that the signatures of a request cover, in bytes. Each
/// field counts once.
pub(super) const COVERED_BYTES_MAX: usize = 8192;
/// What is escaped in the value of `@query-param` (the form-urlencoded set of the URL standard).
const QUERY_PARAMETER: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

/// The parts of a request that its signatures cover.
pub(super) struct Sources<'a> {
    pub request: &'a SignedRequest<'a>,
    /// The fields that have been read, by name.
    fields: HashMap<String, SourceField>,
    /// Whether the target is counted in `bytes_left`.
    target: bool,
    query: Option<QueryParameters<'a>>,
    bytes_left: usize,
}

/// A field.
struct SourceField {
    lines: Vec<u8>,
    /// Its members, once one of them was needed. `None` if it is no dictionary.
    members: Option<Option<Dictionary>>,
}

/// The parameters of a query by their escaped names: their values, not escaped yet. `None` if the
/// name occurs several times.
type QueryParameters<'a> = HashMap<Cow<'a, str>, Option<&'a str>>;

impl<'a> Sources<'a> {
    /// The sources of a request before any part of it is read.
    pub fn new(request: &'a SignedRequest<'a>) -> Sources<'a> {
        let fields = HashMap::new();
        Sources { request, fields, target: false, query: None, bytes_left: COVERED_BYTES_MAX }
    }

    fn count(&mut self, bytes: usize) -> Result<(), SignatureFault> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or(SignatureFault::CoversTooMuch)?;
        Ok(())
    }

    /// Counts the target. Must be called before any part of it is read.
    ///
    /// # Errors
    /// The signatures cover too much.
    pub fn count_target(&mut self) -> Result<(), SignatureFault> {
        if !self.target {
            let query = self.request.query.map_or(0, str::len);
            self.count(self.request.path.len() + query)?;
            self.target = true;
        }
        Ok(())
    }

    /// The value of the parameter of the query with this escaped name, which must occur once
    /// (RFC 9421, 2.2.8).
    ///
    /// # Errors
    /// There is none or more than one, or the signatures cover too much.
    pub fn query_parameter(&mut self, name: &str) -> Result<Vec<u8>, SignatureFault> {
        self.count_target()?;
        let query = self.request.query.unwrap_or_default();
        let parameters = self.query.get_or_insert_with(|| query_parameters(query));
        match parameters.get(name) {
            Some(Some(value)) => Ok(escaped(value).into_owned().into_bytes()),
            Some(None) => Err(SignatureFault::Malformed),
            None => Err(SignatureFault::MissingComponent),
        }
    }

    /// The value of a field.
    ///
    /// # Errors
    /// The request has no such field, or the signatures cover too much.
    pub fn field(&mut self, name: &str) -> Result<&[u8], SignatureFault> {
        Ok(&self.read(name)?.lines)
    }

    /// The value of a member of a field.
    ///
    /// # Errors
    /// The request has no such field, it is no dictionary or has no such member, or the signatures
    /// cover too much.
    pub fn member(&mut self, name: &str, key: &str) -> Result<Vec<u8>, SignatureFault> {
        let SourceField { lines, members } = self.read(name)?;
        let members = members.get_or_insert_with(|| Parser::new(&*lines).parse().ok());
        let members = members.as_ref().ok_or(SignatureFault::Malformed)?;
        let member = members.get(key).ok_or(SignatureFault::MissingComponent)?;
        let value: Option<String> = vec![member.clone()].serialize();
        value.map(String::into_bytes).ok_or(SignatureFault::Malformed)
    }

    fn read(&mut self, name: &str) -> Result<&mut SourceField, SignatureFault> {
        if !self.fields.contains_key(name) {
            self.count(length(self.request.headers, name))?;
        }
        match self.fields.entry(name.to_owned()) {
            Entry::Occupied(field) => Ok(field.into_mut()),
            Entry::Vacant(place) => {
                let lines = joined(self.request.headers, name);
                let lines = lines.ok_or(SignatureFault::MissingComponent)?;
                Ok(place.insert(SourceField { lines, members: None }))
            }
        }
    }
}

fn query_parameters(query: &str) -> QueryParameters<'_> {
    let mut parameters = QueryParameters::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters.entry(escaped(name)).and_modify(|value| *value = None).or_insert(Some(value));
    }
    parameters
}

/// A name or a value of a query in the form in which it is signed: decoded and escaped again.
fn escaped(text: &str) -> Cow<'_, str> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'*' | b'-' | b'.' | b'_');
    if text.bytes().all(plain) {
        return Cow::Borrowed(text);
    }
    let spaces = text.replace('+', " ");
    let decoded = percent_decode_str(&spaces).decode_utf8_lossy();
    Cow::Owned(utf8_percent_encode(&decoded, QUERY_PARAMETER).to_string())
}
