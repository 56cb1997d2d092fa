//! The signature base (RFC 9421, 2.5): the text that a signature was made of, from the request.
//!
//! Supported are the components of a request that a proxy sees: the method, the target and its
//! parts, parameters of the query, fields, and members of fields that are dictionaries (`key`).
//! Bodies are not: a signature that covers `content-digest` covers the field only. The components
//! and parameters of the signature are written again in their strict form, in their order.

use super::fault::SignatureFault;
use super::fields::{SIGNATURE_AGENT, joined};
use http::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use sfv::{Dictionary, FieldType as _, InnerList, Item, List, ListEntry, Parser};
use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write as _;

/// Length of the text. A signature that covers longer fields is refused.
const BASE_BYTES_MAX: usize = 16_384;
/// What is escaped in the value of `@query-param` (the form-urlencoded set of the URL standard).
const QUERY_PARAMETER: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

/// A request as its client has sent it.
#[derive(Clone, Copy, Debug)]
pub struct SignedRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// `https` or `http`, as the client sees it: behind a front that ends TLS, `https`.
    pub scheme: &'a str,
    /// The host, with its port if the client sent one.
    pub authority: &'a str,
    /// The path, not decoded.
    pub path: &'a str,
    /// The query, without `?`; `None` if the target has none.
    pub query: Option<&'a str>,
    /// The scheme and the host of the target as they were sent, if it has the absolute form
    /// (`GET http://host/path`, HTTP/1.1). `None` for the usual form.
    pub absolute: Option<(&'a str, &'a str)>,
    /// All fields, before any is removed or added.
    pub headers: &'a HeaderMap,
}

/// What a signature covers.
pub(super) struct Covered {
    /// The text that was signed.
    pub base: Vec<u8>,
    /// Whether it binds the signature to a host.
    pub authority: bool,
    /// How `Signature-Agent` is covered.
    pub agent: CoveredAgent,
}

/// How a signature covers `Signature-Agent`.
pub(super) enum CoveredAgent {
    Not,
    /// The whole field.
    Whole,
    /// One member, with its key.
    Member(String),
}

impl SignedRequest<'_> {
    /// The host without its port.
    #[must_use]
    pub fn host(&self) -> &str {
        match self.authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => self.authority,
        }
    }

    /// The authority in its normal form (RFC 9421, 2.2.3): lower case, without the default port.
    fn normal_authority(&self) -> String {
        let port = if self.scheme == "https" { ":443" } else { ":80" };
        self.authority.strip_suffix(port).unwrap_or(self.authority).to_ascii_lowercase()
    }

    fn target(&self) -> String {
        let query = self.query.map_or(String::new(), |query| format!("?{query}"));
        format!("{}{query}", self.path)
    }

    /// The target in the form in which it was sent (RFC 9421, 2.2.5).
    fn sent_target(&self) -> String {
        let origin = self.absolute.map(|(scheme, host)| format!("{scheme}://{host}"));
        format!("{}{}", origin.unwrap_or_default(), self.target())
    }

    /// The value of a derived component, whose name begins with `@`.
    fn derived(&self, item: &Item, name: &str) -> Result<Vec<u8>, SignatureFault> {
        if name == "@query-param" {
            return self.query_parameter(item);
        }
        if !item.params.is_empty() {
            return Err(SignatureFault::Unsupported);
        }
        let value = match name {
            "@method" => self.method.to_owned(),
            "@authority" => self.normal_authority(),
            "@scheme" => self.scheme.to_owned(),
            "@path" => self.path.to_owned(),
            "@query" => format!("?{}", self.query.unwrap_or_default()),
            "@request-target" => self.sent_target(),
            "@target-uri" => {
                format!("{}://{}{}", self.scheme, self.normal_authority(), self.target())
            }
            _ => return Err(SignatureFault::Unsupported),
        };
        Ok(value.into_bytes())
    }

    /// The value of a parameter of the query, which must occur once (RFC 9421, 2.2.8).
    fn query_parameter(&self, item: &Item) -> Result<Vec<u8>, SignatureFault> {
        let wanted = item.params.get("name").and_then(|name| name.as_string());
        let wanted =
            wanted.filter(|_| item.params.len() == 1).ok_or(SignatureFault::Unsupported)?;
        let encoded = |text: &str| {
            let spaces = text.replace('+', " ");
            let decoded: Cow<'_, [u8]> = percent_decode(spaces.as_bytes()).into();
            utf8_percent_encode(&String::from_utf8_lossy(&decoded), QUERY_PARAMETER).to_string()
        };
        let pairs = self.query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let mut values = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (encoded(name) == wanted.as_str()).then(|| encoded(value))
        });
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(value.into_bytes()),
            (None, _) => Err(SignatureFault::MissingComponent),
            (Some(_), Some(_)) => Err(SignatureFault::Malformed),
        }
    }

    /// The value of a field or of a member of it.
    fn field(&self, item: &Item, name: &str) -> Result<Vec<u8>, SignatureFault> {
        let lines = joined(self.headers, name).ok_or(SignatureFault::MissingComponent)?;
        if item.params.is_empty() {
            return Ok(lines);
        }
        let Some(key) = member_key(item) else { return Err(SignatureFault::Unsupported) };
        let members: Dictionary =
            Parser::new(&lines).parse().map_err(|_| SignatureFault::Malformed)?;
        let member = members.get(key).ok_or(SignatureFault::MissingComponent)?;
        let value: Option<String> = vec![member.clone()].serialize();
        value.map(String::into_bytes).ok_or(SignatureFault::Malformed)
    }
}

/// The key of the member that a component selects, if that is its only parameter.
fn member_key(item: &Item) -> Option<&str> {
    let key = item.params.get("key").filter(|_| item.params.len() == 1)?;
    key.as_string().map(sfv::StringRef::as_str)
}

impl Covered {
    /// What a signature with these components and parameters covers of the request.
    ///
    /// # Errors
    /// A component is malformed, listed twice, not supported, or not part of the request.
    pub fn of(request: &SignedRequest<'_>, input: &InnerList) -> Result<Covered, SignatureFault> {
        let mut all = Covered { base: Vec::new(), authority: false, agent: CoveredAgent::Not };
        let mut listed = HashSet::new();
        for item in &input.items {
            let name = item.bare_item.as_string().ok_or(SignatureFault::Malformed)?.as_str();
            let identifier = item.serialize();
            let value = if name.starts_with('@') {
                all.authority |= matches!(name, "@authority" | "@target-uri");
                request.derived(item, name)?
            } else if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return Err(SignatureFault::Malformed);
            } else {
                all.note_agent(item, name);
                request.field(item, name)?
            };
            all.write(&identifier, &value)?;
            if !listed.insert(identifier) {
                return Err(SignatureFault::Malformed);
            }
        }
        let whole: List = vec![ListEntry::InnerList(input.clone())];
        let parameters: Option<String> = whole.serialize();
        let parameters = parameters.ok_or(SignatureFault::Malformed)?;
        all.write("\"@signature-params\"", parameters.as_bytes())?;
        // The last line has no line feed.
        all.base.pop();
        Ok(all)
    }

    fn note_agent(&mut self, item: &Item, name: &str) {
        if name == SIGNATURE_AGENT {
            self.agent = match member_key(item) {
                Some(key) => CoveredAgent::Member(key.to_owned()),
                None => CoveredAgent::Whole,
            };
        }
    }

    fn write(&mut self, identifier: &str, value: &[u8]) -> Result<(), SignatureFault> {
        if self.base.len() + identifier.len() + value.len() > BASE_BYTES_MAX {
            return Err(SignatureFault::Malformed);
        }
        let _ = write!(self.base, "{identifier}: ");
        self.base.extend_from_slice(value);
        self.base.push(b'\n');
        Ok(())
    }
}
