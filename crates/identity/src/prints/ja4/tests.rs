//! JA4 against the vectors of its specification, and against hellos that no client should send.

use super::*;

/// The lists of a ClientHello in hex, as the specification writes them.
#[derive(Clone, Copy)]
struct Lists<'a> {
    ciphers: &'a str,
    extensions: &'a str,
    algorithms: &'a str,
    versions: &'a str,
    protocols: &'a [&'a [u8]],
}

/// The example of the specification: a Chrome.
const CHROME: Lists<'_> = Lists {
    ciphers: "1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035",
    extensions: "001b,0000,0033,0010,4469,0017,002d,000d,0005,0023,0012,002b,ff01,000b,000a,0015",
    algorithms: "0403,0804,0401,0503,0805,0501,0806,0601",
    versions: "0304,0303",
    protocols: &[b"h2", b"http/1.1"],
};

fn numbers(list: &str) -> Vec<u16> {
    let words = list.split(',').filter(|word| !word.is_empty());
    words.map(|word| u16::from_str_radix(word, 16).expect("hex")).collect()
}

fn bytes(list: &str) -> Vec<u8> {
    numbers(list).into_iter().flat_map(u16::to_be_bytes).collect()
}

/// `content` behind its length in `size` bytes.
fn vector(size: usize, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short").to_be_bytes();
    [&length[4 - size..], content].concat()
}

/// The content of a ClientHello.
fn content(lists: Lists<'_>) -> Vec<u8> {
    let mut hello = [&[3, 3][..], &[7; 32], &vector(1, &[9; 32])].concat();
    hello.extend(vector(2, &bytes(lists.ciphers)));
    hello.extend([1, 0]);
    let extensions = numbers(lists.extensions).into_iter().flat_map(|kind| {
        let content = match kind {
            SUPPORTED_VERSIONS => vector(1, &bytes(lists.versions)),
            SIGNATURE_ALGORITHMS => vector(2, &bytes(lists.algorithms)),
            ALPN => {
                let names = lists.protocols.iter().flat_map(|name| vector(1, name));
                vector(2, &names.collect::<Vec<_>>())
            }
            _ => vec![0; usize::from(kind % 5)],
        };
        [&kind.to_be_bytes()[..], &vector(2, &content)].concat()
    });
    hello.extend(vector(2, &extensions.collect::<Vec<_>>()));
    hello
}

/// The message in records with up to `cut` bytes each.
fn records(content: &[u8], cut: usize) -> Vec<u8> {
    let message = [&[CLIENT_HELLO][..], &vector(3, content)].concat();
    message.chunks(cut).flat_map(|part| [&[22, 3, 1][..], &vector(2, part)].concat()).collect()
}

fn hello(lists: Lists<'_>) -> Vec<u8> {
    records(&content(lists), HELLO_BYTES_MAX)
}

fn print(lists: Lists<'_>) -> String {
    match read(&hello(lists)) {
        PrintParse::Whole(print) => print.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The examples in the text of the specification.
#[test]
fn the_vectors_of_the_specification_have_their_fingerprints() {
    assert_eq!(print(CHROME), "t13d1516h2_8daaf6152771_e5627efa2ab1");
    let plain = Lists { algorithms: "", ..CHROME };
    assert_eq!(print(plain), "t13d1516h2_8daaf6152771_6d807ffa2a79");
    let named = |protocol: &'static [u8]| print(Lists { protocols: &[protocol], ..CHROME });
    for (protocol, ends) in [
        (&b"h2"[..], "h2"),
        (b"http/1.1", "h1"),
        (b"x", "xx"),
        (b"", "00"),
        (&[0xab], "ab"),
        (&[0x20], "20"),
        (&[0xab, 0xcd], "ad"),
        (&[0x20, 0x61], "21"),
        (&[0x30, 0xab], "3b"),
        (&[0x61, 0x20], "60"),
        (&[0x30, 0x31, 0xab, 0xcd], "3d"),
        (&[0x30, 0xab, 0xcd, 0x31], "01"),
    ] {
        assert_eq!(named(protocol), format!("t13d1516{ends}_8daaf6152771_e5627efa2ab1"));
    }
}

#[test]
fn what_differs_between_connections_of_a_client_changes_nothing() {
    let known = print(CHROME);
    let shuffled = Lists {
        ciphers: "2a2a,0035,1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f",
        extensions: "8a8a,0012,002b,ff01,000b,000a,0015,001b,0000,0033,0010,4469,0017,002d,000d,\
                     0005,0023,fafa",
        versions: "6a6a,0303,0304",
        ..CHROME
    };
    assert_eq!(print(shuffled), known);
    let content = content(CHROME);
    for cut in [64, 100, content.len() - 1] {
        let PrintParse::Whole(print) = read(&records(&content, cut)) else { panic!("{cut}") };
        assert_eq!(print.as_str(), known, "in records of {cut} bytes");
    }
}

#[test]
fn what_a_hello_lacks_has_zeros() {
    let bare = Lists { ciphers: "002f", extensions: "", versions: "", ..CHROME };
    assert!(print(bare).starts_with("t12i010000_"), "{}", print(bare));
    assert!(print(bare).ends_with("_000000000000"));
    let named = Lists { extensions: "0000,0010", ..CHROME };
    assert_eq!(print(named), "t12d1502h2_8daaf6152771_000000000000");
    let empty = Lists { ciphers: "", protocols: &[], ..CHROME };
    assert_eq!(print(empty), "t13d001600_000000000000_e5627efa2ab1");
    let old = content(bare);
    let PrintParse::Whole(old) = read(&records(&old[..old.len() - 2], 512)) else { panic!() };
    assert_eq!(old.as_str(), print(bare), "no list of extensions at all");
    let versions = |versions| print(Lists { versions, ..CHROME })[1..3].to_owned();
    assert_eq!(versions("0302,0301"), "11");
    assert_eq!(versions("7f1c"), "00");
    let many: String = (0x1000..0x1100).map(|cipher| format!("{cipher:04x},")).collect();
    assert!(print(Lists { ciphers: &many, ..CHROME }).starts_with("t13d9916h2_"));
}

#[test]
fn a_part_of_a_hello_asks_for_more_and_a_malformed_one_has_no_fingerprint() {
    let whole = hello(CHROME);
    for end in 0..whole.len() {
        assert_eq!(read(&whole[..end]), PrintParse::More, "at {end}");
    }
    assert!(matches!(read(&[&whole[..], b"more"].concat()), PrintParse::Whole(_)));
    let content = content(CHROME);
    for end in 0..content.len() {
        let cut = records(&content[..end], HELLO_BYTES_MAX);
        // Before the extensions a hello may end.
        let may_end = end == content.len() - extension_bytes(CHROME);
        assert_eq!(matches!(read(&cut), PrintParse::Whole(_)), may_end, "at {end}");
    }
    let long: String = (0..9000).map(|_| "1301,").collect();
    let long = hello_in_pieces(Lists { ciphers: &long, ..CHROME });
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        &[22, 3, 1, 0, 0, 22, 3, 1, 0, 1],
        &[22, 3, 1, 0x40, 1, 1],
        &[22, 3, 1, 0, 1, 2],
        &[22, 3, 1, 0, 4, 1, 1, 0, 0],
        &records(&content, 8),
        &long,
    ] {
        assert_eq!(read(bytes), PrintParse::Bad, "{:?}", &bytes[..bytes.len().min(16)]);
    }
}

fn extension_bytes(lists: Lists<'_>) -> usize {
    content(lists).len() - (2 + 32 + 33 + 2 + bytes(lists.ciphers).len() + 2)
}

fn hello_in_pieces(lists: Lists<'_>) -> Vec<u8> {
    records(&content(lists), 8192)
}

#[test]
fn fuzz_a_hello_has_the_same_fingerprint_however_it_comes() {
    type Input = ((Vec<u8>, Vec<u8>, Vec<u8>), (u8, u8));
    evenkeel_fuzz::fuzz().with_type::<Input>().for_each(
        |((ciphers, kinds, noise), (cut, form))| {
            let hex =
                |list: &[u8]| list.iter().map(|byte| format!("{byte:04x},")).collect::<String>();
            let (ciphers, extensions) = (hex(ciphers), hex(kinds));
            let lists = Lists { ciphers: &ciphers, extensions: &extensions, ..CHROME };
            let mut content = content(lists);
            if form % 2 == 1 {
                let from = content.len().saturating_sub(noise.len());
                content.splice(from.., noise.iter().copied());
            }
            let bytes = match form % 8 {
                7 => noise.clone(),
                _ => records(&content, usize::from(*cut).max(1) * 8),
            };
            let whole = read(&bytes);
            let mut first = PrintParse::More;
            for end in 0..=bytes.len() {
                first = read(&bytes[..end]);
                if first != PrintParse::More {
                    break;
                }
            }
            assert_eq!(first, whole, "it does not matter in which pieces it comes");
            if let PrintParse::Whole(print) = whole {
                assert_eq!(print.as_str().len(), LENGTH);
                assert!(
                    print.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                );
            }
        },
    );
}
