//! The signature base (RFC 9421, 2.5): the text that a signature was made of, from the request.
//!
//! Supported are the components of a request that a proxy sees: the method, the target and its
//! parts, parameters of the query, fields, and members of fields that are dictionaries (`key`).
//! Bodies are not: a signature that covers `content-digest` covers the field only. The components
//! and parameters of the signature are written again in their strict form, in their order. How
//! much of a request is read: `sources`.

use super::fault::SignatureFault;
use super::fields::SIGNATURE_AGENT;
use super::sources::Sources;
use http::HeaderMap;
use sfv::{FieldType as _, InnerList, Item, List, ListEntry};
use std::collections::HashSet;
use std::io::Write as _;

/// Length of the text. A signature that needs a longer one is refused.
const BASE_BYTES_MAX: usize = 16_384;

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

/// The components that a signature claims to cover.
pub(super) struct Covered {
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

    /// The value of a derived component without parameters.
    fn derived(&self, name: &str) -> Result<Vec<u8>, SignatureFault> {
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
}

impl Covered {
    /// The claim of a signature with these components. The request is not read.
    ///
    /// # Errors
    /// The name of a component is malformed.
    pub fn of(input: &InnerList) -> Result<Covered, SignatureFault> {
        let mut all = Covered { authority: false, agent: CoveredAgent::Not };
        for item in &input.items {
            let name = name(item)?;
            all.authority |= matches!(name, "@authority" | "@target-uri");
            if name == SIGNATURE_AGENT {
                all.agent = match parameter(item, "key") {
                    Some(key) => CoveredAgent::Member(key.to_owned()),
                    None => CoveredAgent::Whole,
                };
            }
        }
        Ok(all)
    }
}

/// The text that a signature with these components and parameters was made of.
///
/// # Errors
/// A component is malformed, listed twice, not supported, or not part of the request, or the
/// signature covers too much.
pub(super) fn base(
    sources: &mut Sources<'_>,
    input: &InnerList,
) -> Result<Vec<u8>, SignatureFault> {
    let mut base = Vec::new();
    let mut listed = HashSet::new();
    for item in &input.items {
        let identifier = item.serialize();
        write(&mut base, &identifier, &value(sources, item)?)?;
        if !listed.insert(identifier) {
            return Err(SignatureFault::Malformed);
        }
    }
    let whole: List = vec![ListEntry::InnerList(input.clone())];
    let parameters: Option<String> = whole.serialize();
    let parameters = parameters.ok_or(SignatureFault::Malformed)?;
    write(&mut base, "\"@signature-params\"", parameters.as_bytes())?;
    // The last line has no line feed.
    base.pop();
    Ok(base)
}

/// The name of a component, which is in small letters.
fn name(item: &Item) -> Result<&str, SignatureFault> {
    let name = item.bare_item.as_string().ok_or(SignatureFault::Malformed)?.as_str();
    let large = name.bytes().any(|byte| byte.is_ascii_uppercase());
    if large && !name.starts_with('@') { Err(SignatureFault::Malformed) } else { Ok(name) }
}

/// The parameter of a component with this name, if it is the only one.
fn parameter<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    let value = item.params.get(name).filter(|_| item.params.len() == 1)?;
    value.as_string().map(sfv::StringRef::as_str)
}

/// The value of a component.
fn value(sources: &mut Sources<'_>, item: &Item) -> Result<Vec<u8>, SignatureFault> {
    let name = name(item)?;
    let whole = item.params.is_empty();
    if name == "@query-param" {
        let wanted = parameter(item, "name").ok_or(SignatureFault::Unsupported)?;
        sources.query_parameter(wanted)
    } else if name.starts_with('@') && whole {
        if matches!(name, "@path" | "@query" | "@request-target" | "@target-uri") {
            sources.count_target()?;
        }
        sources.request.derived(name)
    } else if whole {
        sources.field(name).map(<[u8]>::to_vec)
    } else {
        match parameter(item, "key").filter(|_| !name.starts_with('@')) {
            Some(key) => sources.member(name, key),
            None => Err(SignatureFault::Unsupported),
        }
    }
}

fn write(base: &mut Vec<u8>, identifier: &str, value: &[u8]) -> Result<(), SignatureFault> {
    if base.len() + identifier.len() + value.len() > BASE_BYTES_MAX {
        return Err(SignatureFault::CoversTooMuch);
    }
    let _ = write!(base, "{identifier}: ");
    base.extend_from_slice(value);
    base.push(b'\n');
    Ok(())
}
