//! Parses the head of an answer (RFC 7541), as far as the tests need it: its status and its token.
//!
//! The client allows no dynamic table, so only the static one is referenced, and only its status
//! entries matter. Strings may be in Huffman code, which is canonical: the lengths of its codes
//! determine the codes.

/// The parts of a head that the tests need.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub status: Option<u16>,
    pub token: Option<String>,
}

/// The status codes of the static table, in the order of their entries.
const STATUS: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
const STATUS_FIRST: usize = 8;
const STATIC_MAX: usize = 61;

/// The characters that may appear in a head, by the length of their codes (RFC 7541, appendix B).
const HUFFMAN: [(u32, &str); 10] = [
    (5, "012aceiost"),
    (6, " %-./3456789=A_bdfghlmnpru"),
    (7, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, "&*,;XZ"),
    (10, "!\"()?"),
    (11, "'+|"),
    (12, "#>"),
    (13, "\0$@[]~"),
    (14, "^}"),
    (15, "<`{"),
];

/// Parses a complete head.
pub fn read(mut block: &[u8]) -> Result<Head, String> {
    let mut head = Head::default();
    while let [first, ..] = block {
        match first {
            0x80.. => {
                let index = integer(&mut block, 7)?;
                if index == 0 || index > STATIC_MAX {
                    return Err(format!("entry {index} of a table that is not allowed"));
                }
                let status = index.checked_sub(STATUS_FIRST).and_then(|at| STATUS.get(at));
                head.status = status.copied().or(head.status);
            }
            // An update of the table's size.
            0x20..=0x3f => drop(integer(&mut block, 5)?),
            _ => {
                let bits = if *first >= 0x40 { 6 } else { 4 };
                let index = integer(&mut block, bits)?;
                let name = if index == 0 { string(&mut block)? } else { String::new() };
                let value = string(&mut block)?;
                if (STATUS_FIRST..STATUS_FIRST + STATUS.len()).contains(&index) {
                    head.status = Some(value.parse().map_err(|_| format!("status {value}"))?);
                } else if name == "x-token" {
                    head.token = Some(value);
                }
            }
        }
    }
    Ok(head)
}

/// Takes an integer with a prefix of `bits` bits (RFC 7541, 5.1).
fn integer(block: &mut &[u8], bits: u32) -> Result<usize, String> {
    let max = (1_usize << bits) - 1;
    let mut number = usize::from(take(block)?) & max;
    let mut shift = 0;
    while number >= max && shift < 28 {
        let next = usize::from(take(block)?);
        number += (next & 0x7f) << shift;
        shift += 7;
        if next & 0x80 == 0 {
            break;
        }
    }
    Ok(number)
}

fn take(block: &mut &[u8]) -> Result<u8, String> {
    let (first, rest) = block.split_first().ok_or("a head that is cut off")?;
    *block = rest;
    Ok(*first)
}

fn string(block: &mut &[u8]) -> Result<String, String> {
    let huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or("a string that is cut off")?;
    *block = rest;
    if huffman { unhuffman(text) } else { Ok(String::from_utf8_lossy(text).into_owned()) }
}

/// Decodes Huffman code. Codes of one length are consecutive, and continue those of shorter
/// lengths.
fn unhuffman(bytes: &[u8]) -> Result<String, String> {
    let mut text = String::new();
    let (mut code, mut length, mut first, mut counted) = (0_u32, 0, 0_u32, 0_u32);
    for at in 0..8 * bytes.len() {
        let bit = u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
        (code, length, first, counted) = (code << 1 | bit, length + 1, (first + counted) << 1, 0);
        let Some((_, row)) = HUFFMAN.iter().find(|(of, _)| *of == length) else { continue };
        counted = row.len() as u32;
        if let Some(symbol) = code.checked_sub(first).and_then(|at| row.chars().nth(at as usize)) {
            text.push(symbol);
            (code, length, first, counted) = (0, 0, 0, 0);
        }
    }
    // The rest is padding, the beginning of a code of ones.
    if length < 8 && code + 1 == 1 << length { Ok(text) } else { Err("a string of no code".into()) }
}

#[test]
fn the_examples_of_the_standard_are_read() {
    // RFC 7541, C.4.1, C.4.3 and C.6.1: strings in Huffman code.
    let examples: [(&[u8], &str); 3] = [
        (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
        (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", "custom-value"),
        (
            b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3",
            "https://www.example.com",
        ),
    ];
    for (bytes, text) in examples {
        assert_eq!(unhuffman(bytes).as_deref(), Ok(text));
    }
    let block = b"\x20\x88\x00\x07x-token\x02ab\x48\x82\x64\x02";
    let head = Head { status: Some(302), token: Some("ab".to_owned()) };
    assert_eq!(read(block), Ok(head));
}
