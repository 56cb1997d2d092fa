//! The fingerprints of known clients, from frames written by hand; and frames that are malformed.

use super::*;

/// A frame.
fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

fn settings(list: &[(u16, u32)]) -> Vec<u8> {
    let entry = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &list.iter().flat_map(entry).collect::<Vec<_>>())
}

fn window(more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, 0, &more.to_be_bytes())
}

fn priority(stream: u32, parent: u32, weight: u8) -> Vec<u8> {
    frame(PRIORITY, 0, stream, &[&parent.to_be_bytes()[..], &[weight]].concat())
}

/// A request for `/` in the order of Chromium: method, authority, scheme, path; then a user agent.
const CHROMIUM_BLOCK: &[u8] =
    &[0x82, 0x41, 3, b'o', b'r', b'g', 0x87, 0x84, 0x7a, 2, b'i', b't', 0x40, 1, b'x', 1, b'y'];

fn after_preface(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &frames.concat()].concat()
}

fn text(frames: &[Vec<u8>]) -> String {
    let bytes = after_preface(frames);
    let PrintParse::Whole(text) = read(&bytes) else { panic!("{:?}", read(&bytes)) };
    for end in 0..bytes.len() {
        match read(&bytes[..end]) {
            PrintParse::More => {}
            PrintParse::Whole(early) => assert_eq!(early, text, "at {end}"),
            PrintParse::Bad => panic!("at {end}"),
        }
    }
    text
}

#[test]
fn a_chromium_is_told_by_settings_window_and_order() {
    let begun = [settings(&[(1, 65536), (2, 0), (4, 6_291_456), (6, 262_144)]), window(15_663_105)];
    let known = "1:65536;2:0;4:6291456;6:262144|15663105|0|m,a,s,p";
    let weight = [0x80, 0, 0, 0, 0xff];
    let prioritised = [&weight[..], CHROMIUM_BLOCK].concat();
    let padded = [&[3][..], &weight, CHROMIUM_BLOCK, &[0; 3]].concat();
    for headers in [
        frame(HEADERS, END_HEADERS, 1, CHROMIUM_BLOCK),
        frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, &prioritised),
        frame(HEADERS, END_HEADERS | HAS_PRIORITY | PADDED, 1, &padded),
        [frame(HEADERS, 0, 1, &CHROMIUM_BLOCK[..4]), {
            frame(CONTINUATION, END_HEADERS, 1, &CHROMIUM_BLOCK[4..])
        }]
        .concat(),
    ] {
        assert_eq!(text(&[begun.concat(), headers]), known);
    }
}

#[test]
fn other_clients_have_other_fingerprints() {
    let firefox = [
        settings(&[(1, 65536), (4, 131_072), (5, 16384)]),
        window(12_517_377),
        priority(3, 0, 200),
        priority(5, 0x8000_0003, 0),
        frame(HEADERS, END_HEADERS, 15, &[0x82, 0x04, 2, b'/', b'a', 0x41, 1, b'o', 0x87]),
    ];
    let known = "1:65536;4:131072;5:16384|12517377|3:0:0:201,5:1:3:1|m,p,a,s";
    assert_eq!(text(&firefox), known);
    let bare = [frame(HEADERS, END_HEADERS, 1, &[0x3f, 0x45, 0x87, 0x82])];
    assert_eq!(text(&[settings(&[]), bare.concat()]), "|00|0|s,m");
    let literal = |name: &[u8]| {
        let field = FIELDS.iter().find(|field| field.name == name).expect("known");
        let length = 0x80 + u8::try_from(field.coded.len()).expect("short");
        [&[0x10, length][..], field.coded, &[1, b'v']].concat()
    };
    let spelt = [&[0, 5][..], b":path", &[1, b'/']].concat();
    let block = [literal(b":authority"), literal(b":method"), spelt, literal(b":scheme")].concat();
    let literals = [settings(&[(3, 100)]), frame(HEADERS, END_HEADERS, 1, &block)];
    assert_eq!(text(&literals), "3:100|00|0|a,m,p,s");
}

#[test]
fn what_differs_between_connections_or_is_unknown_changes_nothing() {
    let greased = [
        settings(&[(1, 65536), (0x1a1a, 7), (3, 1000)]),
        frame(SETTINGS, ACK, 0, &[]),
        frame(0xfa, 1, 0, b"unknown"),
        window(1),
        window(2),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]),
        frame(HEADERS, END_HEADERS, 1, CHROMIUM_BLOCK),
    ];
    assert_eq!(text(&greased), "1:65536;3:1000|1|0|m,a,s,p");
}

#[test]
fn the_acknowledgement_is_found_in_any_pieces() {
    let frames = [
        settings(&[(1, 65536)]),
        frame(HEADERS, END_HEADERS, 1, CHROMIUM_BLOCK),
        frame(0, 0, 1, &frame(SETTINGS, ACK, 0, &[])),
        frame(SETTINGS, ACK, 0, &[]),
    ];
    let bytes = after_preface(&frames);
    for size in 1..=bytes.len() {
        let mut finder = AcknowledgementFinder::default();
        let (last, before) = (bytes.len() - 1, bytes.chunks(size));
        let mut read = 0;
        for piece in before {
            read += piece.len();
            assert_eq!(finder.read(piece), read > last, "in pieces of {size}");
        }
    }
}

#[test]
fn malformed_frames_have_no_fingerprint() {
    let start = settings(&[(1, 65536)]);
    let request = frame(HEADERS, END_HEADERS, 1, CHROMIUM_BLOCK);
    let headers = |block: &[u8]| [start.clone(), frame(HEADERS, END_HEADERS, 1, block)].concat();
    for frames in [
        request.clone(),
        [window(1), request.clone()].concat(),
        frame(SETTINGS, 0, 1, &[]),
        frame(SETTINGS, 0, 0, &[1; 5]),
        settings(&[(1, 1); SETTINGS_MAX + 1]),
        [&start[..], &[1, 0, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [start.clone(), vec![frame(6, 0, 0, &[0; 8]); FRAMES_MAX].concat()].concat(),
        [start.clone(), frame(PRIORITY, 0, 1, &[0; 4])].concat(),
        [start.clone(), frame(CONTINUATION, 0, 1, CHROMIUM_BLOCK)].concat(),
        [start.clone(), frame(HEADERS, 0, 1, &[0x82]), request.clone()].concat(),
        [start.clone(), frame(HEADERS, END_HEADERS | PADDED, 1, &[4, 0x82])].concat(),
        headers(&[0x80]),
        headers(&[0x82, 0x41, 9, b'o']),
        headers(&[0xff, 0xff, 0xff, 0xff, 0xff]),
        headers(&[0x82; 5]),
    ] {
        assert_eq!(
            read(&after_preface(std::slice::from_ref(&frames))),
            PrintParse::Bad,
            "{frames:?}"
        );
    }
    assert_eq!(read(b"GET / HTTP/1.1\r\n"), PrintParse::Bad);
    let long = [&[0x82, 0x44, 0x7f, 0xff, 0xff, 0x3][..], &[b'a'; BYTES_MAX]].concat();
    let frames = [start, frame(HEADERS, END_HEADERS, 1, &long[..FRAME_BYTES_MAX])].concat();
    assert_eq!(read(&after_preface(&[frames])), PrintParse::Bad, "a path beyond the bound");
}

#[test]
fn fuzz_frames_have_the_same_fingerprint_however_they_come() {
    type Input = ((Vec<u8>, Vec<u8>, Vec<u8>), (u8, u8));
    evenkeel_fuzz::fuzz().with_type::<Input>().for_each(|((list, block, noise), (form, cut))| {
        let entry = |byte: &u8| (u16::from(byte % 16), u32::from(*byte) << 8);
        let list: Vec<_> = list.iter().take(8).map(entry).collect();
        let block = if form & 1 == 0 { [CHROMIUM_BLOCK, block].concat() } else { block.clone() };
        let block = &block[..block.len().min(4000)];
        let (first, second) = block.split_at(block.len().min(usize::from(*cut)));
        let frames = [
            settings(&list),
            if form & 2 == 0 { window(7) } else { frame(form % 9, *cut, 0, noise) },
            frame(HEADERS, form & 0x28, 1, first),
            frame(CONTINUATION, END_HEADERS, 1, second),
        ];
        let bytes = if *form == 255 { noise.clone() } else { after_preface(&frames) };
        let whole = read(&bytes);
        let mut first = PrintParse::More;
        for end in 0..=bytes.len() {
            first = read(&bytes[..end]);
            if first != PrintParse::More {
                break;
            }
        }
        // A frame that is malformed at its end has a fingerprint until then.
        let same = first == whole || whole == PrintParse::Bad;
        assert!(same, "it does not matter in which pieces they come: {first:?} {whole:?}");
        if let PrintParse::Whole(text) = whole {
            assert!(text.len() <= 2048 && text.is_ascii(), "{text}");
        }
    });
}
