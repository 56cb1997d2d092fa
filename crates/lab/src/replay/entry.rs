//! One request of an access log, independent of the program that wrote the log.
//!
//! A parser fills in a [`LineDraft`], which borrows from the line. The part that is kept is an
//! [`LogEntry`], with all its texts in one allocation. Fields that a log does not have stay unknown
//! here; the player of the entries decides what to assume.

use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_identity::address::ProxyTrust;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;
use std::net::IpAddr;

/// The longest time for which a request counts as running. A longer time in a log means a
/// connection that was kept open. This is the default of `timeouts.backend`.
pub const TOOK_MAX: Nanos = Nanos::from_secs(300);

/// The assumed time that the backend works on a request that switches protocols.
const SWITCHED_WORK_TIME: Nanos = Nanos::from_millis(1);

/// The moment of a request that a log records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StampMoment {
    /// The arrival of the request.
    Start,
    #[default]
    End,
}

/// The content of a line, as far as the parser understood it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineDraft<'a> {
    pub time: Time,
    /// The moment to which `time` belongs.
    pub stamp: StampMoment,
    /// Whether the log records times to the second only.
    pub coarse: bool,
    /// How long the backend worked on the request, or the closest value that the log has.
    pub took: Option<Nanos>,
    /// The duration of the whole request, if the log has it separately.
    pub total: Option<Nanos>,
    /// The cost that the backend reported.
    pub cost: Option<Cow<'a, str>>,
    pub peer: Option<IpAddr>,
    /// The forwarded header with which the peer named its client.
    pub forwarded: Option<Cow<'a, str>>,
    pub method: Cow<'a, str>,
    /// Path and query, or a whole URL.
    pub target: Cow<'a, str>,
    pub host: Option<Cow<'a, str>>,
    /// The `User-Agent` header.
    pub agent: Option<Cow<'a, str>>,
    /// The `Referer` header.
    pub referrer: Option<Cow<'a, str>>,
    pub tells: LogFields,
    /// The status of the answer; 0 if there was no answer.
    pub status: u16,
    /// Whether a cache in front of the site answered the request.
    pub cached: bool,
    /// Other headers, with names in lower case.
    pub headers: Vec<(String, String)>,
}

/// The fields that the lines of a log have, empty or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFields {
    /// The log has the `User-Agent` header.
    pub agent: bool,
    /// The log has the `Referer` header.
    pub referrer: bool,
    pub host: bool,
    /// The log has the durations of requests.
    pub took: bool,
    pub headers: bool,
}

impl LogFields {
    /// The fields that at least one of the two has.
    pub fn or(self, other: LogFields) -> LogFields {
        LogFields {
            agent: self.agent || other.agent,
            referrer: self.referrer || other.referrer,
            host: self.host || other.host,
            took: self.took || other.took,
            headers: self.headers || other.headers,
        }
    }

    #[must_use]
    pub fn and(self, other: LogFields) -> LogFields {
        LogFields {
            agent: self.agent && other.agent,
            referrer: self.referrer && other.referrer,
            host: self.host && other.host,
            took: self.took && other.took,
            headers: self.headers && other.headers,
        }
    }
}

/// Start and end of a word in an entry's text, in bytes.
type TextSpan = (u32, u32);

/// One request of a log. Its texts are slices of one allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// The time at which the request arrived.
    pub start: Time,
    /// How long the backend worked on the request, if the log has it.
    pub took: Option<Nanos>,
    /// The cost that the backend reported.
    pub cost: Option<Box<str>>,
    pub address: IpAddr,
    /// Whether the log names a client behind that address that was not believed, because the
    /// address is not a trusted proxy.
    pub forwarded: bool,
    /// The status of the answer; 0 if there was no answer.
    pub status: u16,
    /// Whether its times are known to the second only.
    pub coarse: bool,
    text: Box<str>,
    method: TextSpan,
    path: TextSpan,
    query: TextSpan,
    host: TextSpan,
    agent: TextSpan,
    referrer: TextSpan,
    headers: Vec<(TextSpan, TextSpan)>,
}

impl LineDraft<'_> {
    /// Makes the entry; `trust` decides which proxies may name the client.
    ///
    /// # Errors
    /// Returns an error message if the line has no client address.
    pub fn entry(self, trust: &ProxyTrust) -> Result<LogEntry, &'static str> {
        let peer = self.peer.ok_or("no client address")?.to_canonical();
        // If the log has all headers, the one that names the client is among them.
        let named = |(name, _): &&(String, String)| trust.written_in() == Some(name.as_str());
        let written = self.headers.iter().find(named).map(|(_, value)| value.as_str());
        let forwarded = written.or(self.forwarded.as_deref()).filter(|text| names_somebody(text));
        let address = forwarded.map_or(peer, |text| behind(peer, text, trust));
        let took = self.took.map(|took| took.min(TOOK_MAX));
        // A connection that was switched to another protocol no longer counts as running.
        let took =
            if self.status == 101 { took.map(|took| took.min(SWITCHED_WORK_TIME)) } else { took };
        let total = self.total.map_or(took, |total| Some(total.min(TOOK_MAX)));
        let start = match self.stamp {
            StampMoment::Start => self.time,
            StampMoment::End => self.time.minus(total.unwrap_or_default()),
        };
        let mut text = String::new();
        let mut add = |word: &str| -> TextSpan {
            let from = text.len() as u32;
            text.push_str(word);
            (from, text.len() as u32)
        };
        let (host, path, query) = parts(&self.target);
        let host = self.host.as_deref().filter(|host| !host.is_empty()).or(host);
        Ok(LogEntry {
            start,
            took,
            cost: self.cost.as_deref().map(Box::from),
            address,
            forwarded: forwarded.is_some() && !trust.trusts_headers(peer),
            status: self.status,
            coarse: self.coarse,
            method: add(&self.method),
            path: add(path),
            query: add(query),
            host: add(host.unwrap_or_default()),
            agent: add(self.agent.as_deref().unwrap_or_default()),
            referrer: add(self.referrer.as_deref().unwrap_or_default()),
            headers: self.headers.iter().map(|(n, v)| (add(n), add(v))).collect(),
            text: text.into_boxed_str(),
        })
    }
}

impl LogEntry {
    fn word(&self, span: TextSpan) -> &str {
        self.text.get(span.0 as usize..span.1 as usize).unwrap_or_default()
    }

    /// The `User-Agent` header; empty if there is none.
    pub fn agent(&self) -> &str {
        self.word(self.agent)
    }

    /// The `Referer` header; empty if there is none.
    pub fn referrer(&self) -> &str {
        self.word(self.referrer)
    }

    /// The time at which the answer ended, as far as the log has it.
    pub fn end(&self) -> Time {
        self.start.plus(self.took.unwrap_or_default())
    }

    /// The second in which the request arrived.
    pub fn second(&self) -> u64 {
        self.start.0 / SECOND
    }
}

impl RequestAttributes for LogEntry {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn method(&self) -> &str {
        self.word(self.method)
    }

    fn path(&self) -> &str {
        self.word(self.path)
    }

    fn vhost(&self) -> &str {
        self.word(self.host)
    }

    fn query(&self) -> &str {
        self.word(self.query)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let known = self.headers.iter().find(|(n, _)| self.word(*n) == name);
        let named = match name {
            "user-agent" => self.agent,
            "referer" => self.referrer,
            "host" => self.host,
            _ => (0, 0),
        };
        let value = known.map_or(named, |(_, value)| *value);
        Some(self.word(value).as_bytes()).filter(|value| !value.is_empty())
    }
}

/// Whether a forwarded header has a value: servers write a hyphen for an absent one.
fn names_somebody(text: &str) -> bool {
    !matches!(text.trim(), "" | "-")
}

/// The address of the client, from the peer and its forwarded header.
fn behind(peer: IpAddr, text: &str, trust: &ProxyTrust) -> IpAddr {
    let mut headers = HeaderMap::new();
    let name = trust.written_in().and_then(|name| HeaderName::try_from(name).ok());
    if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(text)) {
        headers.insert(name, value);
    }
    trust.client(peer, &headers).to_canonical()
}

/// Host, path and query of a target; the host only if the target is a whole URL.
fn parts(target: &str) -> (Option<&str>, &str, &str) {
    let (host, rest) = match target.find("://").filter(|at| *at <= 8) {
        Some(at) => {
            let rest = &target[at + 3..];
            let slash = rest.find(['/', '?']).unwrap_or(rest.len());
            (Some(&rest[..slash]), &rest[slash..])
        }
        None => (None, target),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    (host, if path.is_empty() { "/" } else { path }, query)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::ClientAddress;

    fn nobody() -> ProxyTrust {
        ProxyTrust::new(&[], &ClientAddress::XForwardedFor)
    }

    fn draft(target: &str) -> LineDraft<'_> {
        LineDraft {
            time: Time(10 * SECOND),
            peer: "192.0.2.1".parse().ok(),
            method: "GET".into(),
            target: target.into(),
            ..LineDraft::default()
        }
    }

    #[test]
    fn targets_come_apart() {
        for (target, host, path, query) in [
            ("/a/b?x=1&y", "", "/a/b", "x=1&y"),
            ("http://example.com:8080/a?x", "example.com:8080", "/a", "x"),
            ("https://example.com", "example.com", "/", ""),
            ("http://[2001:db8::1]:80/a", "[2001:db8::1]:80", "/a", ""),
            ("*", "", "*", ""),
            ("", "", "/", ""),
            ("/go?to=http://elsewhere/", "", "/go", "to=http://elsewhere/"),
        ] {
            let entry = draft(target).entry(&nobody()).expect("it has an address");
            assert_eq!((entry.vhost(), entry.path(), entry.query()), (host, path, query));
        }
    }

    #[test]
    fn a_request_began_before_its_end() {
        let took = Some(Nanos::from_secs(3));
        let entry = LineDraft { took, ..draft("/") }.entry(&nobody()).expect("it has an address");
        assert_eq!((entry.start, entry.end()), (Time(7 * SECOND), Time(10 * SECOND)));
        let start = LineDraft { took, stamp: StampMoment::Start, ..draft("/") };
        assert_eq!(start.entry(&nobody()).expect("it has one").start, Time(10 * SECOND));
        // The backend worked on the request for only a part of the time.
        let part = LineDraft { took: Some(Nanos::from_secs(1)), total: took, ..draft("/") };
        let part = part.entry(&nobody()).expect("it has one");
        assert_eq!((part.start, part.end()), (Time(7 * SECOND), Time(8 * SECOND)));
    }

    #[test]
    fn only_trusted_peers_are_believed() {
        let said = || LineDraft { forwarded: Some("198.51.100.7".into()), ..draft("/") };
        let entry = said().entry(&nobody()).expect("it has an address");
        assert_eq!((entry.address.to_string(), entry.forwarded), ("192.0.2.1".into(), true));
        let net = "192.0.2.0/24".parse().expect("a network");
        let trust = ProxyTrust::new(&[net], &ClientAddress::XForwardedFor);
        let entry = said().entry(&trust).expect("it has an address");
        assert_eq!((entry.address.to_string(), entry.forwarded), ("198.51.100.7".into(), false));
        assert!(LineDraft { peer: None, ..draft("/") }.entry(&nobody()).is_err());
    }

    #[test]
    fn each_header_is_read_as_the_proxy_reads_it() {
        let net: ipnet::IpNet = "192.0.2.0/24".parse().expect("a network");
        let asked = |written, forwarded: &'static str, headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            let draft = LineDraft { forwarded: Some(forwarded.into()), headers, ..draft("/") };
            let entry = draft.entry(&ProxyTrust::new(&[net], &written)).expect("it has an address");
            entry.address.to_string()
        };
        let forged = r#"for="198.51.100.77";x=", for=203.0.113.66"#;
        assert_eq!(asked(ClientAddress::Forwarded, forged, &[]), "203.0.113.66");
        let headers = [("forwarded", forged), ("x-own", "203.0.113.7")];
        assert_eq!(asked(ClientAddress::Forwarded, "6.6.6.6", &headers), "203.0.113.66");
        assert_eq!(asked(ClientAddress::Header("x-own".into()), "-", &headers), "203.0.113.7");
        assert_eq!(asked(ClientAddress::XForwardedFor, "203.0.113.5", &headers), "203.0.113.5");
        assert_eq!(asked(ClientAddress::ProxyProtocol, "203.0.113.5", &headers), "192.0.2.1");
    }
}
