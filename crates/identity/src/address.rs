//! The address of the client behind trusted proxies.
//!
//! Headers are used only if the peer is trusted. The list of addresses is read from the right, over
//! all lines of the header, and trusted addresses are skipped: the first address that is not
//! trusted is the client. Empty elements are skipped. An element that is no address (`unknown`,
//! `_hidden`, garbage) ends the search, and the peer counts as the client. IPv4-mapped addresses
//! count as IPv4.
//!
//! A client controls the left part of a line, a trusted proxy appends to the right. So lines are
//! also split from the right: a quoted string runs from its closing quote back to its opening one,
//! and an unmatched quote ends the search. Read from the left, an unclosed quote of the client
//! would hide the part that the proxy appends.
//!
//! Headers are written elsewhere: `proxy/src/headers.rs`. The PROXY protocol is read in
//! `proxy/src/front/proxy_header.rs`.

use evenkeel_config::settings::ClientAddress;
use http::HeaderMap;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// The trusted proxies, and where they write the client's address.
pub struct ProxyTrust {
    proxies: Vec<IpNet>,
    written: ClientAddress,
}

impl ProxyTrust {
    /// Creates the trust from the configured networks. IPv4-mapped networks match nothing, because
    /// addresses are compared in canonical form.
    #[must_use]
    pub fn new(proxies: &[IpNet], written: &ClientAddress) -> ProxyTrust {
        ProxyTrust { proxies: proxies.to_vec(), written: written.clone() }
    }

    /// Whether this address belongs to a trusted proxy.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|net| net.contains(&address))
    }

    /// Whether connections from this address must begin with a PROXY protocol header.
    #[must_use]
    pub fn expects_proxy_header(&self, address: IpAddr) -> bool {
        self.written == ClientAddress::ProxyProtocol && self.trusts(address)
    }

    /// Whether forwarded headers from this address are trusted. False with the PROXY protocol,
    /// which replaces the headers.
    #[must_use]
    pub fn trusts_headers(&self, address: IpAddr) -> bool {
        self.written != ClientAddress::ProxyProtocol && self.trusts(address)
    }

    /// The configured header (lower case) with the client's address, which only trusted peers may
    /// send. `None` for standard headers and the PROXY protocol.
    #[must_use]
    pub fn header(&self) -> Option<&str> {
        match &self.written {
            ClientAddress::Header(name) => Some(name),
            _ => None,
        }
    }

    /// The header (lower case) in which trusted peers write the client's address. `None` with the
    /// PROXY protocol.
    #[must_use]
    pub fn written_in(&self) -> Option<&str> {
        match &self.written {
            ClientAddress::XForwardedFor => Some("x-forwarded-for"),
            ClientAddress::Forwarded => Some("forwarded"),
            ClientAddress::Header(name) => Some(name),
            ClientAddress::ProxyProtocol => None,
        }
    }

    /// The client of a request from `peer`. Invariant: `peer` is in canonical form.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let found = self.trusts_headers(peer).then(|| self.found(headers)).flatten();
        found.unwrap_or(peer)
    }

    /// The client of a request that the front end at `peer` (in canonical form) has received and
    /// asks about. Front ends on this machine are trusted. A front end also passes on the forwarded
    /// headers of its clients, so its own header `X-Real-IP` takes precedence. If that names a
    /// trusted proxy, the search continues as for a request from that proxy; if it is invalid, the
    /// peer counts as the client.
    #[must_use]
    pub fn client_of_front(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !peer.is_loopback() && !self.trusts(peer) {
            return peer;
        }
        if headers.contains_key("x-real-ip") {
            let real = only(headers, "x-real-ip").and_then(address);
            return real.map_or(peer, |real| self.client(real, headers));
        }
        self.found(headers).unwrap_or(peer)
    }

    /// The client of a request that the Envoy at `peer` (in canonical form) has received and asks
    /// about. `source`: the client according to Envoy, if it says so; if that is a trusted proxy,
    /// the search continues as for a request from that proxy. Without it, the headers count as
    /// Envoy passes them on, so an `X-Real-IP` there proves nothing: any client can send it. A peer
    /// that is not on this machine and not trusted counts as the client.
    #[must_use]
    pub fn client_of_envoy(
        &self,
        peer: IpAddr,
        source: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> IpAddr {
        match source {
            _ if !peer.is_loopback() && !self.trusts(peer) => peer,
            Some(source) => self.client(source, headers),
            None => self.found(headers).unwrap_or(peer),
        }
    }

    /// The client's address according to the headers.
    fn found(&self, headers: &HeaderMap) -> Option<IpAddr> {
        match &self.written {
            ClientAddress::XForwardedFor => self.x_forwarded_for(headers),
            ClientAddress::Forwarded => self.forwarded(headers),
            ClientAddress::Header(name) => only(headers, name).and_then(address),
            ClientAddress::ProxyProtocol => None,
        }
    }

    fn x_forwarded_for(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let name = match headers.contains_key("x-forwarded-for") {
            true => "x-forwarded-for",
            false => "x-real-ip",
        };
        let lines = headers.get_all(name).iter().rev();
        let elements = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        self.walk(elements.map(<[u8]>::trim_ascii).filter(|e| !e.is_empty()).map(address))
    }

    fn forwarded(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let lines = headers.get_all("forwarded").iter().rev();
        let elements = lines.flat_map(|line| SplitRight::new(line.as_bytes(), b','));
        let elements = elements.map(|element| element.map(<[u8]>::trim_ascii));
        let elements = elements.filter(|element| element.is_none_or(|e| !e.is_empty()));
        self.walk(elements.map(|element| forwarded_for(element?)))
    }

    /// The first address that is not trusted, or the last one if all are. `None` if an element
    /// before it is invalid, or if there are no elements.
    fn walk(&self, addresses: impl Iterator<Item = Option<IpAddr>>) -> Option<IpAddr> {
        let mut last = None;
        for address in addresses {
            let address = address?;
            if !self.trusts(address) {
                return Some(address);
            }
            last = Some(address);
        }
        last
    }
}

/// The value of a header that must occur exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.as_bytes().trim_ascii())
}

/// Parses `1.2.3.4`, `1.2.3.4:56`, `::1`, `[::1]`, `[::1]:80`, and `fe80::1%eth0` without its zone.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim();
    if let Some(inner) = text.strip_prefix('[') {
        let (inner, rest) = inner.split_once(']')?;
        let port = rest.is_empty() || rest.strip_prefix(':')?.parse::<u16>().is_ok();
        return port.then(|| plain(inner))?.filter(IpAddr::is_ipv6).map(|ip| ip.to_canonical());
    }
    let with_port = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    plain(text).or_else(with_port).map(|ip| ip.to_canonical())
}

fn plain(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        Some((address, _zone)) => address.parse().ok().filter(IpAddr::is_ipv6),
        None => text.parse().ok(),
    }
}

/// The address in the `for` parameter of one element of a `Forwarded` header.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let pairs = SplitRight::new(element, b';').flatten();
    let mut values = pairs.filter_map(|pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        name.eq_ignore_ascii_case(b"for").then_some(value)
    });
    let value = values.next()?;
    let unquoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    values.next().is_none().then(|| address(unquoted.unwrap_or(value)))?
}

/// The lines of `Forwarded`, without everything before an unmatched quote. A reader that parses
/// from the left would take the text after that quote for a part of the quoted string.
pub fn closed_forwarded(headers: &HeaderMap) -> Vec<&[u8]> {
    let mut closed = Vec::new();
    for line in headers.get_all("forwarded").iter().rev() {
        let line = line.as_bytes();
        let mut elements = SplitRight::new(line, b',');
        let mut from = line.len();
        while let Some(Some(_)) = elements.next() {
            from = elements.rest.map_or(0, |rest| rest.len() + 1);
        }
        closed.push(&line[from..]);
        if from > 0 {
            break;
        }
    }
    closed.retain(|line| !line.trim_ascii().is_empty());
    closed.reverse();
    closed
}

/// Splits a text at `mark` from the right; marks inside quoted strings are ignored. Yields `None`
/// as its last item if a quote is unmatched, because the rest cannot be split.
struct SplitRight<'a> {
    rest: Option<&'a [u8]>,
    mark: u8,
}

impl<'a> SplitRight<'a> {
    fn new(text: &'a [u8], mark: u8) -> SplitRight<'a> {
        SplitRight { rest: Some(text), mark }
    }
}

impl<'a> Iterator for SplitRight<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        let text = self.rest.take()?;
        let mut at = text.len();
        while let Some(before) = at.checked_sub(1) {
            at = before;
            if text[at] == b'"' {
                let Some(begin) = quotation(&text[..at]) else { return Some(None) };
                at = begin;
            } else if text[at] == self.mark {
                self.rest = Some(&text[..at]);
                return Some(Some(&text[at + 1..]));
            }
        }
        Some(Some(text))
    }
}

/// Start of the quoted string that ends with a quote right after `text`.
fn quotation(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    if is_escaped(text) {
        return None;
    }
    loop {
        end = text[..end].iter().rposition(|byte| *byte == b'"')?;
        if !is_escaped(&text[..end]) {
            return Some(end);
        }
    }
}

/// Whether the character right after `text` is escaped.
fn is_escaped(text: &[u8]) -> bool {
    text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn client(written: &ClientAddress, peer: &str, lines: &[(&'static str, &str)]) -> IpAddr {
        let trusted = ["127.0.0.1/32", "::1/128", "10.0.0.0/8"];
        let trusted: Vec<IpNet> = trusted.iter().map(|n| n.parse().expect("a network")).collect();
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        ProxyTrust::new(&trusted, written).client(ip(peer), &headers)
    }

    fn by_xff(lines: &[&str]) -> IpAddr {
        let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
        client(&ClientAddress::XForwardedFor, "127.0.0.1", &lines)
    }

    #[test]
    fn t15_t16_the_first_untrusted_from_the_right() {
        assert_eq!(by_xff(&["5.6.7.8, 1.2.3.4, 127.0.0.1"]), ip("1.2.3.4"));
        assert_eq!(by_xff(&["127.0.0.1, 127.0.0.1"]), ip("127.0.0.1"));
        assert_eq!(by_xff(&["10.1.1.1,127.0.0.1"]), ip("10.1.1.1"));
    }

    #[test]
    fn t17_x_real_ip_where_there_is_no_x_forwarded_for() {
        let real = ("x-real-ip", "3.3.3.3");
        let xff = ClientAddress::XForwardedFor;
        assert_eq!(client(&xff, "127.0.0.1", &[real]), ip("3.3.3.3"));
        let both = [("x-forwarded-for", ","), real];
        assert_eq!(client(&xff, "127.0.0.1", &both), ip("127.0.0.1"));
    }

    #[test]
    fn t18_an_empty_element_is_skipped() {
        assert_eq!(by_xff(&["4.4.4.4, "]), ip("4.4.4.4"));
    }

    #[test]
    fn t19_who_is_not_trusted_is_not_believed() {
        let lines = [("x-forwarded-for", "1.2.3.4"), ("x-real-ip", "1.2.3.4")];
        assert_eq!(client(&ClientAddress::XForwardedFor, "9.9.9.9", &lines), ip("9.9.9.9"));
    }

    #[test]
    fn t20_all_lines_are_one_list() {
        assert_eq!(by_xff(&["1.1.1.1", "2.2.2.2, 127.0.0.1"]), ip("2.2.2.2"));
        assert_eq!(by_xff(&["1.1.1.1", "10.0.0.1"]), ip("1.1.1.1"));
    }

    #[test]
    fn t21_what_is_no_address_means_the_peer() {
        for rubbish in ["unknown", "1.2.3.4, unknown", "1.2.3", "[::1", "[1.2.3.4]", "::1]:80"] {
            assert_eq!(by_xff(&[rubbish]), ip("127.0.0.1"), "{rubbish}");
        }
    }

    #[test]
    fn what_a_front_says_itself_goes_before_what_clients_write() {
        let xff = |value| ("x-forwarded-for", value);
        let front = |peer: &str, lines: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_str(value).expect("a value"));
            }
            let trusted = ["10.0.0.0/8".parse().expect("a network")];
            let trust = ProxyTrust::new(&trusted, &ClientAddress::XForwardedFor);
            trust.client_of_front(ip(peer), &headers).to_string()
        };
        for (peer, lines, client) in [
            ("127.0.0.1", &[("x-real-ip", "1.2.3.4"), xff("6.6.6.6")][..], "1.2.3.4"),
            ("10.0.0.9", &[("x-real-ip", "1.2.3.4"), xff("6.6.6.6")], "1.2.3.4"),
            ("127.0.0.1", &[("x-real-ip", "10.0.0.1"), xff("6.6.6.6, 1.2.3.4")], "1.2.3.4"),
            ("127.0.0.1", &[("x-real-ip", "10.0.0.1")], "10.0.0.1"),
            ("127.0.0.1", &[("x-real-ip", "unix:")], "127.0.0.1"),
            ("127.0.0.1", &[("x-real-ip", "1.2.3.4"), ("x-real-ip", "5.6.7.8")], "127.0.0.1"),
            ("127.0.0.1", &[xff("6.6.6.6, 1.2.3.4")], "1.2.3.4"),
            ("::1", &[], "::1"),
            ("8.8.8.8", &[("x-real-ip", "1.2.3.4")], "8.8.8.8"),
        ] {
            assert_eq!(front(peer, lines), client, "{peer} {lines:?}");
        }
    }

    #[test]
    fn ports_brackets_zones_and_mapped_addresses() {
        for (written, read) in [
            ("1.2.3.4:5678", "1.2.3.4"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
        ] {
            assert_eq!(by_xff(&[written]), ip(read), "{written}");
        }
    }

    #[test]
    fn forwarded_is_walked_likewise() {
        for (line, read) in [
            ("for=1.2.3.4;proto=http, for=10.0.0.1", "1.2.3.4"),
            (r#"For="[2001:db8::9]:4711";by=1.1.1.1"#, "2001:db8::9"),
            (r#"for="1.2.3.4:80""#, "1.2.3.4"),
            ("for=_hidden", "127.0.0.1"),
            ("for=unknown, for=10.0.0.1", "127.0.0.1"),
            ("by=1.2.3.4", "127.0.0.1"),
            (r#"host="a,for=6.6.6.6";for=1.2.3.4"#, "1.2.3.4"),
            ("for=1.2.3.4;for=5.6.7.8", "127.0.0.1"),
        ] {
            let headers = [("forwarded", line)];
            assert_eq!(
                client(&ClientAddress::Forwarded, "127.0.0.1", &headers),
                ip(read),
                "{line}"
            );
        }
    }

    /// Text that a client may send in the line that its front end appends to, or in another line.
    const FORGED: [&str; 14] = [
        r#"for="198.51.100.77";x=""#,
        r#"for=198.51.100.77, x=""#,
        r#"for="198.51.100.77"#,
        r#"x=", for=198.51.100.77"#,
        r#"for="198.51.100.77";x="\"#,
        r#"for="198.51.100.77";x="\""#,
        r#"for="198.51.100.77";x="\\"#,
        r#"for="198.51.100.77";x="\\", y=""#,
        r#"""#,
        r#"\"#,
        r#"for=198.51.100.77;x="a", ", for=198.51.100.77;x=""#,
        "for=198.51.100.77",
        "for=unknown",
        "",
    ];

    #[test]
    fn an_open_quotation_swallows_nothing_of_what_a_front_appends() {
        for forged in FORGED {
            for own in [
                "for=203.0.113.66",
                r#"for="203.0.113.66:80""#,
                r#"for=203.0.113.66;host="a,b\"c";proto=http"#,
                r#"by=_me;For="203.0.113.66", for=10.0.0.7, for="10.0.0.8:80""#,
            ] {
                let joined = format!("{forged}, {own}");
                for lines in [
                    &[("forwarded", joined.as_str())][..],
                    &[("forwarded", forged), ("forwarded", own)],
                ] {
                    let found = client(&ClientAddress::Forwarded, "127.0.0.1", lines);
                    assert_eq!(found, ip("203.0.113.66"), "{lines:?}");
                }
            }
            // With several trusted front ends, an incomplete rest is not trusted.
            let joined = format!("{forged}, for=10.0.0.7");
            let found = client(&ClientAddress::Forwarded, "127.0.0.1", &[("forwarded", &joined)]);
            let whole = ["198.51.100.77", "127.0.0.1", "10.0.0.7"].map(ip);
            assert!(whole.contains(&found), "{joined} {found}");
        }
    }

    #[test]
    fn what_is_handed_on_has_no_open_quotation() {
        let closed = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("forwarded", HeaderValue::from_str(line).expect("a value"));
            }
            let closed = closed_forwarded(&headers);
            closed.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(closed(&["for=1.1.1.1, for=2.2.2.2"]), ["for=1.1.1.1, for=2.2.2.2"]);
        assert_eq!(closed(&[r#"for="1.1.1.1";x="a,b", for=2.2.2.2"#, "for=3.3.3.3"]).len(), 2);
        assert_eq!(
            closed(&["for=0.0.0.0", r#"x=", for=1.1.1.1, for=2.2.2.2"#]),
            [" for=1.1.1.1, for=2.2.2.2"]
        );
        assert_eq!(closed(&[r#"x=""#, "for=2.2.2.2"]), ["for=2.2.2.2"]);
        assert!(closed(&[r#"x=""#]).is_empty());
    }

    #[test]
    fn fuzz_what_a_trusted_front_appends_decides_whatever_stands_before_it() {
        const PIECES: [&str; 16] = [
            "\"",
            "\\",
            ",",
            ";",
            "=",
            " ",
            "for=",
            "for=\"",
            "198.51.100.77",
            "[2001:db8::77]",
            "x",
            "unknown",
            ":80",
            "\\\"",
            "for=10.0.0.9",
            "\t",
        ];
        let trusted = ["127.0.0.1/32", "10.0.0.0/8"].map(|n| n.parse().expect("a network"));
        evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, u8, bool)>().for_each(
            |(bytes, way, likely)| {
                let forged = match likely {
                    true => {
                        bytes.iter().flat_map(|b| PIECES[usize::from(*b) % 16].bytes()).collect()
                    }
                    false => bytes.clone(),
                };
                for (name, written, own) in [
                    ("forwarded", ClientAddress::Forwarded, "for=203.0.113.66"),
                    (
                        "forwarded",
                        ClientAddress::Forwarded,
                        "for=\"203.0.113.66:1\";host=\"a,\\\"\"",
                    ),
                    ("forwarded", ClientAddress::Forwarded, "for=203.0.113.66, for=10.0.0.7"),
                    ("x-forwarded-for", ClientAddress::XForwardedFor, "203.0.113.66"),
                    ("x-forwarded-for", ClientAddress::XForwardedFor, "203.0.113.66:7,10.0.0.7"),
                ] {
                    let lines = match way % 2 {
                        0 => vec![[&forged, &b", "[..], own.as_bytes()].concat()],
                        _ => vec![forged.clone(), own.as_bytes().to_vec()],
                    };
                    let mut headers = HeaderMap::new();
                    for line in lines {
                        let Ok(value) = HeaderValue::from_bytes(&line) else { return };
                        headers.append(name, value);
                    }
                    let trust = ProxyTrust::new(&trusted, &written);
                    let front = match way % 3 {
                        0 => trust.client_of_front(ip("10.0.0.1"), &headers),
                        _ => trust.client(ip("10.0.0.1"), &headers),
                    };
                    assert_eq!(front, ip("203.0.113.66"), "{headers:?}");
                    if name == "forwarded" {
                        let closed = closed_forwarded(&headers).join(&b", "[..]);
                        assert!(closed.ends_with(own.as_bytes()), "{headers:?}");
                        assert!(SplitRight::new(&closed, b',').all(|element| element.is_some()));
                    }
                }
            },
        );
    }

    #[test]
    fn a_header_of_ones_own_must_be_there_once() {
        let written = ClientAddress::Header("cf-connecting-ip".into());
        let once = [("cf-connecting-ip", "1.2.3.4")];
        assert_eq!(client(&written, "10.0.0.1", &once), ip("1.2.3.4"));
        let twice = [("cf-connecting-ip", "1.2.3.4"), ("cf-connecting-ip", "1.2.3.4")];
        assert_eq!(client(&written, "10.0.0.1", &twice), ip("10.0.0.1"));
    }

    #[test]
    fn fuzz_whatever_is_written_the_answer_is_an_address_that_was_there_or_the_peer() {
        let trusted: Vec<IpNet> = vec!["127.0.0.1/32".parse().expect("a network")];
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            for (name, written) in [
                ("x-forwarded-for", ClientAddress::XForwardedFor),
                ("x-real-ip", ClientAddress::XForwardedFor),
                ("forwarded", ClientAddress::Forwarded),
                ("x-own", ClientAddress::Header("x-own".into())),
            ] {
                let mut headers = HeaderMap::new();
                headers.append(name, value.clone());
                let trust = ProxyTrust::new(&trusted, &written);
                let found = trust.client(ip("127.0.0.1"), &headers);
                assert_eq!(found, found.to_canonical());
                assert_eq!(trust.client(ip("8.8.8.8"), &headers), ip("8.8.8.8"));
            }
        });
    }
}
