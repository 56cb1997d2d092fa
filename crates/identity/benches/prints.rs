//! The cost of the fingerprints: of a ClientHello, of the first frames of HTTP/2, of headers.
//!
//! `cargo bench -p evenkeel-identity --bench prints`. The fastest of some rounds is shown, because
//! other work on the machine only adds time. The first two are read once for a connection, the
//! headers for each request.

#![allow(missing_docs)]

use evenkeel_identity::prints::fetch::FetchRequest;
use evenkeel_identity::prints::{PrintParse, h2, ja4};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 20;
const CALLS: u32 = 20_000;

const AGENT: &[u8] = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/131.0.0.0 Safari/537.36";

fn measure(name: &str, mut call: impl FnMut()) {
    let round = |_| {
        let begun = Instant::now();
        (0..CALLS).for_each(|_| call());
        begun.elapsed().as_nanos() / u128::from(CALLS)
    };
    let fastest = (0..ROUNDS).map(round).min().unwrap_or_default();
    println!("{name:<48} {fastest:>6} ns");
}

/// `content` behind its length in two bytes.
fn vector(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes(), content].concat()
}

/// A ClientHello of the size of a browser's: 16 ciphers, 18 extensions, a key share of 1216 bytes.
fn hello() -> Vec<u8> {
    let ciphers: Vec<u8> = (0..32).map(|byte| byte * 3).collect();
    let mut extensions = Vec::new();
    for kind in (0x14_u16..0x24).rev() {
        extensions.extend(kind.to_be_bytes());
        extensions.extend(vector(&[0; 12]));
    }
    extensions.extend([0, 0x33]);
    extensions.extend(vector(&[7; 1216]));
    extensions.extend([0, 0x0d, 0, 18, 0, 16]);
    extensions.extend([4, 3, 8, 4, 4, 1, 5, 3, 8, 5, 5, 1, 8, 6, 6, 1]);
    let mut hello = [&[3, 3][..], &[7; 32], &[0]].concat();
    hello.extend(vector(&ciphers));
    hello.extend([1, 0]);
    hello.extend(vector(&extensions));
    let message = [&[1, 0][..], &vector(&hello)].concat();
    [&[22, 3, 1][..], &vector(&message)].concat()
}

/// What Chromium sends at the start of a connection.
fn frames() -> Vec<u8> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings =
        b"\0\0\x18\x04\0\0\0\0\0\0\x01\0\x01\0\0\0\x02\0\0\0\0\0\x04\0\x60\0\0\0\x06\0\x04\0\0";
    let window = b"\0\0\x04\x08\0\0\0\0\0\0\xef\0\x01";
    let headers = b"\0\0\x09\x01\x05\0\0\0\x01\x82\x41\x03org\x87\x84\x7a";
    [&preface[..], settings, window, headers].concat()
}

fn main() {
    let (hello, frames) = (hello(), frames());
    assert!(matches!(ja4::read(&hello), PrintParse::Whole(_)));
    measure("ja4: a ClientHello of a browser", || {
        black_box(ja4::read(black_box(&hello)));
    });
    measure("ja4: the first half of it", || {
        black_box(ja4::read(black_box(&hello[..hello.len() / 2])));
    });
    assert!(matches!(h2::read(&frames), PrintParse::Whole(_)));
    measure("h2: the first frames of Chromium", || {
        black_box(h2::read(black_box(&frames)));
    });
    let page: [(&str, &[u8]); 8] = [
        ("user-agent", AGENT),
        ("accept", b"text/html,*/*;q=0.8"),
        ("accept-language", b"en"),
        ("accept-encoding", b"gzip"),
        ("sec-fetch-site", b"none"),
        ("sec-fetch-mode", b"navigate"),
        ("sec-fetch-dest", b"document"),
        ("sec-ch-ua", b"\"Chromium\";v=\"131\", \"Not_A Brand\";v=\"24\""),
    ];
    let header =
        |name: &str| page.iter().find(|(field, _)| *field == name).map(|(_, value)| *value);
    measure("fetch: a page for a browser", || {
        let request =
            FetchRequest { method: black_box("GET"), secure: true, repeats_agent: false, header };
        black_box(request.verdict());
    });
}
