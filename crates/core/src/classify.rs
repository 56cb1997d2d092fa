//! Maps a request to the keys under which it is counted, and to readable names of these keys.
//!
//! A request is read in every way that a backend may read it; otherwise `/%2flogin` would bypass a
//! limit on `/login`. Paths are read by `path`, hosts by [`host_name`], and cookies from all
//! `Cookie` lines. Every decision or count that depends on a path, a host or a cookie goes through
//! this module.

mod api_key;
pub(crate) mod inline_list;
mod path;
pub mod prefix;
mod reading;

use crate::condition::{Condition, Truth};
use crate::fact::ClientFact;
use crate::key::{KeyHash, KeyHasher, KeySeed, NAME_BYTES_MAX, network};
use crate::limit::{KeyPart, LIMITS_MAX, Limit, UnitCosts};
use crate::units::Weight;
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::{IpAddr, Ipv6Addr};
use inline_list::InlineList;
use path::RequestPath;
pub use reading::RequestReading;

/// The attributes of a request that a limit can use.
pub trait RequestAttributes {
    /// The client's address, as seen behind all trusted proxies.
    fn address(&self) -> IpAddr;
    /// The method, exactly as sent.
    fn method(&self) -> &str;
    /// The path, exactly as sent, without its query.
    fn path(&self) -> &str;
    /// The host that the request names, exactly as sent; empty if it names none.
    fn vhost(&self) -> &str;
    /// The first value of a header; `name` is in lower case.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// All lines of a header, of which there may be several; `name` is in lower case.
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.header(name).into_iter()
    }
    /// The query, exactly as sent, without the question mark; empty if there is none.
    fn query(&self) -> &str {
        ""
    }
    /// The name under which the client is counted, if its confirmed name belongs to a group that is
    /// counted together. Without one the client is counted by its address.
    fn group(&self) -> Option<&str> {
        None
    }
    /// Whether the client's address is in the address list with this name. No address is in an
    /// unknown list.
    fn is_listed(&self, _: &str) -> bool {
        false
    }
    /// The text, number or truth value at a JSON pointer in the body; `None` if there is none, or
    /// the body is not read.
    fn json(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }
    /// The text of a fact; `None` if it is absent or unknown.
    fn fact(&self, _: ClientFact) -> Option<Cow<'_, str>> {
        None
    }
    /// The request as one to a language model; `None` if it is not, or if costs are not counted in
    /// tokens.
    fn model_call(&self) -> Option<ModelCall<'_>> {
        None
    }
}

/// A request to a language model, as far as its cost is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCall<'a> {
    /// The name of the model; empty if the request names none.
    pub model: &'a str,
    /// The estimated cost of the prompt.
    pub prompt: UnitCosts,
    /// The cost of a thousand tokens of the output.
    pub output: UnitCosts,
    /// The maximum number of output tokens that the request permits; `None` if it sets no bound.
    pub output_max: Option<u64>,
}

/// One key of a request: the limit and the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitKey {
    /// Index of the limit in the list of its door.
    pub limit: u8,
    /// Hash under which the bucket is stored.
    pub hash: KeyHash,
}

/// The keys of one request, in the order of the limits. An exempt request has none.
#[derive(Clone, Debug)]
pub struct LimitKeys {
    keys: InlineList<LimitKey>,
    /// Bit set of the limits with a condition that holds only in the reading of some backends.
    doubtful: u32,
}

const _: () = assert!(LIMITS_MAX <= u32::BITS as usize, "a bit for each limit");

impl Default for LimitKeys {
    fn default() -> LimitKeys {
        let keys = InlineList::filled(0, LimitKey { limit: 0, hash: KeyHash::from_bits(1) });
        LimitKeys { keys, doubtful: 0 }
    }
}

impl LimitKeys {
    /// Adds a key. Its limit must come after the limits of all keys added before. A key beyond
    /// [`LIMITS_MAX`] is dropped; no door has that many limits.
    pub fn push(&mut self, key: LimitKey) {
        if self.as_slice().len() < LIMITS_MAX {
            self.keys.push(key);
        }
    }

    /// All keys in the order of their limits.
    #[must_use]
    pub fn as_slice(&self) -> &[LimitKey] {
        self.keys.as_slice()
    }
}

/// Returns the keys of a request under `limits`.
#[must_use]
pub fn keys<R: RequestAttributes>(
    limits: &[Limit],
    seed: &KeySeed,
    seen: &RequestReading<'_, R>,
) -> LimitKeys {
    let mut keys = LimitKeys::default();
    for (index, limit) in limits.iter().enumerate() {
        match seen.truth(&limit.when) {
            Truth::No => continue,
            Truth::Maybe => keys.doubtful |= 1u32.checked_shl(index as u32).unwrap_or(0),
            Truth::Yes => {}
        }
        keys.push(LimitKey { limit: index as u8, hash: key_hash(limit, seed, seen) });
    }
    keys
}

/// The weight of a request with these keys in the admission queue: the product of the weights of
/// all its limits. A condition that holds only in some readings never increases the weight.
#[must_use]
pub fn weight(limits: &[Limit], keys: &LimitKeys) -> Weight {
    let doubtful =
        |key: &LimitKey| keys.doubtful.checked_shr(key.limit.into()).unwrap_or(0) & 1 == 1;
    let granted = |key: &LimitKey| {
        let limit = limits.get(usize::from(key.limit)).filter(|limit| !limit.shadow)?;
        (limit.weight <= Weight::ONE || !doubtful(key)).then_some(limit.weight)
    };
    keys.as_slice().iter().filter_map(granted).fold(Weight::ONE, Weight::times)
}

/// Returns the key of a request under one limit.
#[must_use]
pub fn hash(limit: &Limit, seed: &KeySeed, request: &impl RequestAttributes) -> KeyHash {
    key_hash(limit, seed, &RequestReading::new(request))
}

fn key_hash<R: RequestAttributes>(
    limit: &Limit,
    seed: &KeySeed,
    seen: &RequestReading<'_, R>,
) -> KeyHash {
    let request = seen.request;
    let mut hasher = KeyHasher::new(seed);
    for part in &limit.by {
        match part {
            KeyPart::Ip { v4, v6 } => hasher.address(network(request.address(), *v4, *v6)),
            KeyPart::Host => match request.group() {
                // The empty part comes first. No address has one, so a name cannot be mistaken for
                // an address.
                Some(group) => [b"", group.as_bytes()].into_iter().for_each(|p| hasher.part(p)),
                None => hasher.address(network(request.address(), 32, 128)),
            },
            KeyPart::UserAgent => hasher.part(request.header("user-agent").unwrap_or_default()),
            KeyPart::Header(name) => hasher.part(request.header(name).unwrap_or_default()),
            KeyPart::Cookie(name) => hasher.part(cookie(request, name).unwrap_or_default()),
            KeyPart::ApiKey => hasher.part(api_key_of(request)),
            KeyPart::Json(at) => hasher.part(request.json(at).unwrap_or_default().as_bytes()),
            KeyPart::Method => hasher.part(request.method().as_bytes()),
            KeyPart::Path(segments) => {
                hasher.part(first_segments(seen.path().as_str(), *segments).as_bytes());
            }
            KeyPart::Vhost => hasher.part(lower(host_name(request.vhost())).as_bytes()),
            KeyPart::Fact(fact) => {
                hasher.part(request.fact(*fact).unwrap_or_default().as_bytes());
            }
            KeyPart::All | KeyPart::Tag => hasher.part(b""),
        }
    }
    hasher.finish()
}

/// The readable name of a request's key of these parts: `192.0.2.0/24`, or several parts separated
/// by spaces. The name has at most [`NAME_BYTES_MAX`] bytes, and control characters are replaced. A
/// part that may be a secret (cookies, tokens) is shown as the end of its `hash`.
#[must_use]
pub fn name(by: &[KeyPart], request: &impl RequestAttributes, hash: KeyHash) -> String {
    let mut name = String::new();
    for (index, part) in by.iter().enumerate() {
        if index > 0 {
            name.push(' ');
        }
        push_name(&mut name, part, request, hash);
    }
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(end.unwrap_or(0));
    name
}

fn push_name(name: &mut String, part: &KeyPart, request: &impl RequestAttributes, hash: KeyHash) {
    let veiled = |of: &str| format!("{of}#{:06x}", hash.bits() & 0xff_ffff);
    let mut text = |bytes: &[u8]| name.push_str(&readable(bytes));
    match part {
        KeyPart::Ip { v4, v6 } => push_network(name, request.address(), *v4, *v6),
        KeyPart::Host => match request.group() {
            Some(group) => text(group.as_bytes()),
            None => push_network(name, request.address(), 32, 128),
        },
        KeyPart::UserAgent => text(request.header("user-agent").unwrap_or(b"-")),
        KeyPart::Header(header) if is_secret(header) => text(veiled(header).as_bytes()),
        KeyPart::Header(header) => text(request.header(header).unwrap_or(b"-")),
        KeyPart::Cookie(cookie) => text(veiled(cookie).as_bytes()),
        KeyPart::ApiKey => text(veiled("api-key").as_bytes()),
        KeyPart::Json(at) => text(request.json(at).unwrap_or(Cow::Borrowed("-")).as_bytes()),
        KeyPart::Method => text(request.method().as_bytes()),
        KeyPart::Path(segments) => {
            text(first_segments(&normal_path(request.path()), *segments).as_bytes());
        }
        KeyPart::Vhost => text(host_name(request.vhost()).as_bytes()),
        KeyPart::Fact(fact) => {
            text(request.fact(*fact).unwrap_or(Cow::Borrowed("-")).as_bytes());
        }
        KeyPart::All => text(b"all"),
        KeyPart::Tag => text(b"-"),
    }
}

/// The identifier of a request for a remote service that counts it: its parts as bytes, separated
/// by NUL, which no part can contain. An address is text; a network also has its length after a
/// slash. For a part that may be a secret (cookies, tokens), `veil` turns its name and value into
/// text. An absent part is empty.
#[must_use]
pub fn identifier(
    by: &[KeyPart],
    request: &impl RequestAttributes,
    veil: impl Fn(&str, &[u8]) -> String,
) -> Vec<u8> {
    let mut identifier = Vec::new();
    for (index, part) in by.iter().enumerate() {
        if index > 0 {
            identifier.push(0);
        }
        push_part(&mut identifier, part, request, &veil);
    }
    identifier
}

fn push_part(
    identifier: &mut Vec<u8>,
    part: &KeyPart,
    request: &impl RequestAttributes,
    veil: &impl Fn(&str, &[u8]) -> String,
) {
    let network = |v4, v6| {
        let mut text = String::new();
        push_network(&mut text, request.address(), v4, v6);
        text
    };
    let secret = |name: &str, value: Option<&[u8]>| value.map(|value| veil(name, value));
    let text = match part {
        KeyPart::Ip { v4, v6 } => network(*v4, *v6),
        KeyPart::Host => request.group().map_or_else(|| network(32, 128), String::from),
        KeyPart::Path(segments) => {
            String::from(first_segments(&normal_path(request.path()), *segments))
        }
        KeyPart::Vhost => lower(host_name(request.vhost())).into_owned(),
        KeyPart::Fact(fact) => request.fact(*fact).unwrap_or_default().into_owned(),
        KeyPart::ApiKey => veil("api-key", api_key_of(request)),
        KeyPart::Json(at) => request.json(at).unwrap_or_default().into_owned(),
        KeyPart::Cookie(name) => secret(name, cookie(request, name)).unwrap_or_default(),
        KeyPart::Header(name) if is_secret(name) => {
            secret(name, request.header(name)).unwrap_or_default()
        }
        KeyPart::Header(name) => {
            return identifier.extend(request.header(name).unwrap_or_default());
        }
        KeyPart::UserAgent => {
            return identifier.extend(request.header("user-agent").unwrap_or_default());
        }
        KeyPart::Method => return identifier.extend(request.method().as_bytes()),
        KeyPart::All | KeyPart::Tag => return,
    };
    identifier.extend(text.into_bytes());
}

fn api_key_of(request: &impl RequestAttributes) -> &[u8] {
    api_key::api_key(api_key::HEADERS.iter().flat_map(|name| request.headers(name)))
}

/// The first [`NAME_BYTES_MAX`] bytes of untrusted input in readable form: UTF-8, with control
/// characters replaced.
#[must_use]
pub fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(NAME_BYTES_MAX)]);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Whether the value of a header may allow a reader to impersonate its user.
fn is_secret(header: &str) -> bool {
    ["auth", "cookie", "token", "key", "secret", "session"].iter().any(|s| header.contains(s))
}

fn push_network(name: &mut String, address: IpAddr, v4: u8, v6: u8) {
    let network = network(address, v4, v6);
    let (bits, all) = if network.is_ipv4() { (v4, 32) } else { (v6, 128) };
    // Writing to a String cannot fail.
    let _ = if bits == all { write!(name, "{network}") } else { write!(name, "{network}/{bits}") };
}

/// Whether a condition holds in the reading of any backend.
#[must_use]
pub fn applies(when: &Condition, request: &impl RequestAttributes) -> bool {
    RequestReading::new(request).truth(when) != Truth::No
}

/// The first value of a cookie, on any of the lines.
fn cookie<'a>(request: &'a impl RequestAttributes, name: &'a str) -> Option<&'a [u8]> {
    reading::cookies(request, name).next()
}

/// The host name in a request's host: without the port, without any other text in place of a port,
/// and without the dot that ends a full name.
#[must_use]
pub fn host_name(host: &str) -> &str {
    let name = match host.find([':', ']']) {
        Some(_) if host.parse::<Ipv6Addr>().is_ok() => host,
        Some(end) if host.starts_with('[') => {
            let end = host.find(']').unwrap_or(end);
            host.get(..=end).unwrap_or(host)
        }
        Some(end) => &host[..end],
        None => host,
    };
    name.trim_end_matches('.')
}

fn lower(text: &str) -> Cow<'_, str> {
    match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(text.to_ascii_lowercase()),
        false => Cow::Borrowed(text),
    }
}

/// The first `segments` segments of a path; all of them for `None`.
fn first_segments(path: &str, segments: Option<u8>) -> &str {
    let Some(segments) = segments else { return path };
    let mut slashes = path.match_indices('/').map(|(at, _)| at);
    match slashes.nth(usize::from(segments)) {
        Some(end) => &path[..end],
        None => path,
    }
}

/// The form of a path under which it is counted. Each character has one form, and every character
/// that may be a slash becomes a slash. Parameters, empty segments, `.` segments and the final
/// slash are removed. All paths with a `..` segment become `/..`. A path that is normal already is
/// borrowed.
#[must_use]
pub fn normal_path(path: &str) -> Cow<'_, str> {
    RequestPath::read(path).normal()
}

#[cfg(test)]
mod tests;
