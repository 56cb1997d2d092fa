//! The PROXY protocol, versions 1 and 2: the header in which a front names its client before the
//! first byte of a connection.
//!
//! This file parses bytes; it reads no socket. Which peers may send such a header is decided in
//! `front.rs`. An ambiguous header is refused, and the parser never waits for more than
//! [`BYTES_MAX`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The maximum length of a version 2 header, in bytes. It may contain client certificates.
const BYTES_MAX: usize = 4096;

/// The maximum length of a version 1 line, in bytes, with its line end.
const LINE_BYTES_MAX: usize = 107;

/// The signature at the start of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The number of bytes in version 2 before the addresses.
const FIXED_BYTES: usize = 16;

/// The type of the field about the client's TLS, and the bit in it that is set if the client uses
/// TLS.
const TLS: u8 = 0x20;
const TLS_SPOKEN: u8 = 1;

const _: () = {
    assert!(SIGNATURE.len() + 4 == FIXED_BYTES, "version, family and the length in two bytes");
    assert!(FIXED_BYTES < BYTES_MAX && LINE_BYTES_MAX <= BYTES_MAX, "BYTES_MAX bounds both");
};

/// The party that a connection is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxiedParty {
    /// The front itself (a health check), or a client without an address.
    Itself,
    Client {
        /// The client's IP address.
        address: IpAddr,
        /// Whether the client uses TLS towards the front.
        secure: bool,
    },
}

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyHeaderParse {
    /// The header is incomplete.
    More,
    /// The bytes are not a valid header.
    Bad,
    /// A complete header: its length in bytes, and the party that it names.
    Whole(usize, ProxiedParty),
}

pub(super) fn read(bytes: &[u8]) -> ProxyHeaderParse {
    let begins = |with: &[u8]| {
        let common = bytes.len().min(with.len());
        bytes[..common] == with[..common]
    };
    if begins(SIGNATURE) {
        return if bytes.len() < FIXED_BYTES { ProxyHeaderParse::More } else { read_binary(bytes) };
    }
    if begins(b"PROXY ") { read_line(bytes) } else { ProxyHeaderParse::Bad }
}

fn read_line(bytes: &[u8]) -> ProxyHeaderParse {
    let within = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = within.iter().position(|b| *b == b'\n') else {
        return if bytes.len() < LINE_BYTES_MAX {
            ProxyHeaderParse::More
        } else {
            ProxyHeaderParse::Bad
        };
    };
    let line = within[..end].strip_suffix(b"\r").and_then(|line| str::from_utf8(line).ok());
    match line.and_then(said_by_line) {
        Some(said) => ProxyHeaderParse::Whole(end + 1, said),
        None => ProxyHeaderParse::Bad,
    }
}

/// Parses `PROXY TCP4 192.0.2.1 192.0.2.2 1234 80`, or `PROXY UNKNOWN` with any rest.
fn said_by_line(line: &str) -> Option<ProxiedParty> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(ProxiedParty::Itself);
    }
    let address = |word: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::from),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::from),
            _ => None,
        }
    };
    let port = |word: &str| {
        let plain = word.bytes().all(|b| b.is_ascii_digit());
        word.parse::<u16>().ok().filter(|_| plain)
    };
    let source = address(words.next()?)?;
    address(words.next()?)?;
    port(words.next()?)?;
    port(words.next()?)?;
    words.next().is_none().then_some(ProxiedParty::Client { address: source, secure: false })
}

fn read_binary(bytes: &[u8]) -> ProxyHeaderParse {
    let length = FIXED_BYTES + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if length > BYTES_MAX {
        return ProxyHeaderParse::Bad;
    }
    let Some(said) = bytes.get(FIXED_BYTES..length) else { return ProxyHeaderParse::More };
    let found = match (bytes[12], bytes[13]) {
        // LOCAL: the addresses are to be ignored.
        (0x20, _) => Some(ProxiedParty::Itself),
        // PROXY over TCP; the source address comes first.
        (0x21, 0x11) => said.get(..12).map(|addresses| {
            let source: [u8; 4] = [addresses[0], addresses[1], addresses[2], addresses[3]];
            client(IpAddr::from(source), &said[12..])
        }),
        (0x21, 0x21) => said.get(..36).and_then(|addresses| {
            let source: [u8; 16] = addresses[..16].try_into().ok()?;
            Some(client(IpAddr::from(source), &said[36..]))
        }),
        // Other families (datagrams, socket files, unspecified) have no address to count by.
        (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => Some(ProxiedParty::Itself),
        _ => None,
    };
    found.map_or(ProxyHeaderParse::Bad, |found| ProxyHeaderParse::Whole(length, found))
}

/// The client at `address`. `fields` contain more about it: each has a type, a length and that
/// number of bytes.
fn client(address: IpAddr, mut fields: &[u8]) -> ProxiedParty {
    let mut secure = false;
    while let [kind, high, low, rest @ ..] = fields {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        // A truncated field is ignored.
        let Some(value) = rest.get(..length) else { break };
        secure |= *kind == TLS && value.first().is_some_and(|bits| bits & TLS_SPOKEN != 0);
        fields = &rest[length..];
    }
    ProxiedParty::Client { address, secure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_at(address: &str, secure: bool) -> ProxiedParty {
        ProxiedParty::Client { address: address.parse().expect("an address"), secure }
    }

    fn binary(command: u8, family: u8, said: &[u8]) -> Vec<u8> {
        let length = u16::try_from(said.len()).expect("short").to_be_bytes();
        [SIGNATURE, &[command, family], &length, said].concat()
    }

    #[test]
    fn lines_are_read_or_refused() {
        let good = [
            ("PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n", client_at("192.0.2.1", false)),
            ("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", client_at("2001:db8::1", false)),
            ("PROXY UNKNOWN\r\n", ProxiedParty::Itself),
            ("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ProxiedParty::Itself),
        ];
        for (line, said) in good {
            let bytes = [line.as_bytes(), b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(read(&bytes), ProxyHeaderParse::Whole(line.len(), said), "{line}");
            for cut in 0..line.len() {
                assert_eq!(read(&bytes[..cut]), ProxyHeaderParse::More, "{line} at {cut}");
            }
        }
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_BYTES_MAX));
        for line in [
            "GET / HTTP/1.1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1234\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80 1\r\n",
            "PROXY TCP4 192.0.2.1  192.0.2.2 1234 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 65536 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 80\r\n",
            "PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 a b 1 2\r\n",
            "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            &long,
        ] {
            assert_eq!(read(line.as_bytes()), ProxyHeaderParse::Bad, "{line}");
        }
    }

    #[test]
    fn binary_headers_are_read_or_refused() {
        let v4 = [192, 0, 2, 1, 192, 0, 2, 2, 4, 210, 0, 80];
        let mut v6 = [0; 36];
        v6[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        v6[15] = 1;
        let tls = |bits| [&v4[..], &[4, 0, 1, 9], &[TLS, 0, 5, bits, 0, 0, 0, 0]].concat();
        for (bytes, said) in [
            (binary(0x21, 0x11, &v4), client_at("192.0.2.1", false)),
            (binary(0x21, 0x21, &v6), client_at("2001:db8::1", false)),
            (binary(0x21, 0x11, &tls(1)), client_at("192.0.2.1", true)),
            (binary(0x21, 0x11, &tls(0)), client_at("192.0.2.1", false)),
            (binary(0x21, 0x11, &tls(1)[..16]), client_at("192.0.2.1", false)),
            (binary(0x20, 0x11, &v4), ProxiedParty::Itself),
            (binary(0x20, 0x00, &[]), ProxiedParty::Itself),
            (binary(0x21, 0x31, &[0; 216]), ProxiedParty::Itself),
        ] {
            let length = bytes.len();
            assert_eq!(read(&[&bytes[..], b"x"].concat()), ProxyHeaderParse::Whole(length, said));
            for cut in 0..length {
                assert_eq!(read(&bytes[..cut]), ProxyHeaderParse::More, "at {cut}");
            }
        }
        for bytes in [
            binary(0x11, 0x11, &v4),
            binary(0x22, 0x11, &v4),
            binary(0x21, 0x11, &v4[..11]),
            binary(0x21, 0x21, &v6[..35]),
            binary(0x21, 0x41, &v4),
            binary(0x21, 0x11, &[0; BYTES_MAX]),
        ] {
            assert_eq!(read(&bytes), ProxyHeaderParse::Bad, "{bytes:?}");
        }
    }

    #[test]
    fn fuzz_a_preface_is_the_same_however_it_comes() {
        evenkeel_fuzz::fuzz().for_each(|input: &[u8]| {
            let Some((form, rest)) = input.split_first() else { return };
            let bytes = match form % 4 {
                0 => [b"PROXY TCP4 ", rest].concat(),
                1 => [SIGNATURE, &[0x21], rest].concat(),
                2 => [SIGNATURE, rest].concat(),
                _ => rest.to_vec(),
            };
            let whole = read(&bytes);
            let mut first = ProxyHeaderParse::More;
            for end in 0..=bytes.len() {
                first = read(&bytes[..end]);
                if first != ProxyHeaderParse::More {
                    break;
                }
            }
            assert_eq!(first, whole, "it does not matter in which pieces it comes");
            match whole {
                ProxyHeaderParse::Whole(length, _) => assert!(length <= bytes.len().min(BYTES_MAX)),
                ProxyHeaderParse::More => assert!(bytes.len() < BYTES_MAX),
                ProxyHeaderParse::Bad => {}
            }
        });
    }
}
