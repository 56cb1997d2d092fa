//! Fuzz harnesses for the inputs of the service: rule files, requests and JSON.

use crate::ask::{C1, Service, file};
use bytes::Bytes;
use evenkeel_fuzz::fuzz;
use evenkeel_grpc::frames::{FrameError, FrameReader};
use evenkeel_ratelimit::decide::DecisionBuffers;
use evenkeel_ratelimit::json;
use evenkeel_ratelimit::rules::pattern::ValuePattern;
use evenkeel_ratelimit::rules::read::{RuleOptions, read};
use evenkeel_ratelimit::tally::RuleTallies;
use evenkeel_ratelimit::wire::view::{RequestView, RequestViewError};
use evenkeel_ratelimit::wire::{ProtoPackage, Request};
use prost::Message;

fn rules_are_read(bytes: &[u8]) {
    for compat_keys in [false, true] {
        let mut one = file("a.yaml", "");
        one.bytes = bytes.to_vec();
        let options = RuleOptions { compat_keys, ..RuleOptions::default() };
        match read(&[one], options, &RuleTallies::default()) {
            Ok(rules) => {
                let entries = [("k", "v"), ("l", "w")];
                rules.domain("d").into_iter().for_each(|rules| _ = rules.rule(&entries));
            }
            Err(faults) => assert!(faults.iter().all(|faults| !faults.faults.is_empty())),
        }
    }
}

#[test]
fn fuzz_rules() {
    fuzz().for_each(|bytes: &[u8]| rules_are_read(bytes));
}

#[test]
fn fuzz_rules_of_likely_pieces() {
    const PIECES: [&str; 32] = [
        "domain: d\n",
        "descriptors:\n",
        "- ",
        "  ",
        "\n",
        "key: k",
        "value: v",
        "value: 'a*'",
        "rate_limit: ",
        "{",
        "}",
        "unit: day",
        "requests_per_unit: 5",
        "unlimited: true",
        ", ",
        "[",
        "]",
        "*a",
        "&a ",
        "<<: ",
        "shadow_mode: true",
        "metadata: ",
        "1.5",
        "null",
        "replaces: ",
        "name: n",
        "share_threshold: true",
        "---\n",
        ": ",
        "\"",
        "unit_multiplier: 2",
        "calendar: true",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let text: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 32]).collect();
        rules_are_read(text.as_bytes());
        rules_are_read(format!("domain: d\ndescriptors:\n- key: k\n  {text}").as_bytes());
    });
}

/// The borrowing decoder reads the same request as the generated messages, or both refuse the
/// bytes.
fn request_is_read(service: &Service, bytes: &[u8]) {
    let view = RequestView::decode(bytes);
    if view == Err(RequestViewError::TooMany) {
        return;
    }
    match (Request::decode(bytes), view) {
        (Ok(request), Ok(view)) => {
            assert_eq!(RequestView::of(&request), view);
            let decided =
                service.decider.decide(&view, ProtoPackage::V3, &mut DecisionBuffers::default());
            if let Ok(response) = decided {
                assert_eq!(response.statuses.len(), view.descriptors.len());
            }
        }
        (Err(_), Err(_)) => {}
        (message, view) => panic!("{message:?}, but {view:?}"),
    }
}

#[test]
fn fuzz_requests() {
    let service = std::panic::AssertUnwindSafe(Service::new(C1));
    fuzz().for_each(|bytes: &[u8]| request_is_read(&service, bytes));
}

/// Builds requests from likely fields, valid and nearly valid, with correct nesting.
#[test]
fn fuzz_requests_of_likely_pieces() {
    const PIECES: [&[u8]; 26] = [
        b"\x0a\x01t",
        b"\x12\x05\x0a\x03\x0a\x01k",
        b"\x12\x00",
        b"\x18\x02",
        b"\x0a\x01k",
        b"\x12\x01v",
        b"\x0a\x03\x0a\x01k",
        b"\x1a\x02\x08\x07",
        b"\x20\x01",
        b"\x12\x04\x08\x02",
        b"\x10\x03",
        b"\x08",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff",
        b"\x80",
        b"\x2b\x08\x01\x2c",
        b"\x2b",
        b"\x2c",
        b"\x2d\x01\x02\x03\x04",
        b"\x29",
        b"\x0a\x02\xc3\x28",
        b"\x0a\x02\xc3\xbc",
        b"\x0a\x01\xc2",
        b"\x82\x01\x00",
        b"\x12",
        b"\x12\x7f",
    ];
    let service = std::panic::AssertUnwindSafe(Service::new(C1));
    fuzz().for_each(|bytes: &[u8]| {
        let of = |bytes: &[u8]| -> Vec<u8> {
            bytes.iter().flat_map(|b| PIECES[usize::from(*b) % 26]).copied().collect()
        };
        request_is_read(&service, &of(bytes));
        let inner = of(bytes);
        if let Ok(length) = u8::try_from(inner.len())
            && length < 128
        {
            request_is_read(&service, &[b"\x0a\x01t\x12", &[length][..], &inner].concat());
        }
    });
}

/// A body of frames gives the same messages in one piece, in two pieces cut anywhere, and as a body
/// of one message. Each message is a request or is refused.
fn body_is_read(service: &Service, bytes: &[u8], cut: usize) {
    let taken = |pieces: &[&[u8]]| {
        let (mut frames, mut messages) = (FrameReader::new(64), Vec::new());
        for piece in pieces {
            frames.push(Bytes::copy_from_slice(piece));
            loop {
                match frames.take() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(fault) => return (messages, Err(fault)),
                }
            }
        }
        (messages, Ok(frames.buffered_bytes()))
    };
    let whole = taken(&[bytes]);
    let (before, behind) = bytes.split_at(cut % (bytes.len() + 1));
    assert_eq!(taken(&[before, behind]), whole);
    assert_eq!(taken(&bytes.chunks(1).collect::<Vec<_>>()), whole);
    let mut only = FrameReader::new(usize::MAX);
    only.push(Bytes::copy_from_slice(bytes));
    match (only.take_only(), &whole) {
        (Ok(message), (messages, Ok(0))) => {
            assert_eq!(messages, std::slice::from_ref(&message));
            request_is_read(service, &message);
        }
        (Ok(message), (_, Err(FrameError::Long(64)))) => assert!(message.len() > 64),
        (Ok(_), other) => panic!("one message, but {other:?}"),
        (Err(_), (messages, kept)) => assert!(messages.len() != 1 || *kept != Ok(0)),
    }
}

#[test]
fn fuzz_framed_requests() {
    let service = std::panic::AssertUnwindSafe(Service::new(C1));
    fuzz().for_each(|bytes: &[u8]| {
        let cut = bytes.first().copied().unwrap_or_default();
        body_is_read(&service, bytes, cut.into());
        // Also tries the bytes as the message of a valid frame, and of a frame with one wrong bit
        // in its head.
        let length = u32::try_from(bytes.len()).unwrap_or_default();
        let mut framed = [&[0], &length.to_be_bytes()[..], bytes].concat();
        body_is_read(&service, &framed, cut.into());
        framed[usize::from(cut) % 5] ^= 1 << (cut % 8);
        body_is_read(&service, &framed, cut.into());
    });
}

#[test]
fn fuzz_json() {
    fuzz().for_each(|bytes: &[u8]| _ = json::request(bytes));
}

#[test]
fn fuzz_json_of_likely_pieces() {
    const PIECES: [&str; 16] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"domain\"",
        "\"descriptors\"",
        "\"entries\"",
        "\"key\"",
        "\"hitsAddend\"",
        "\"limit\"",
        "\"unit\"",
        "7",
        "\"HOUR\"",
        "null",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let text: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 16]).collect();
        let _ = json::request(text.as_bytes());
    });
}

fn covers_slowly(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skip| covers_slowly(rest, &text[skip..])),
        ([one, rest @ ..], [first, after @ ..]) => one == first && covers_slowly(rest, after),
        _ => false,
    }
}

/// A pattern matches the same texts as a slow reference matcher that tries the stars one by one.
#[test]
fn fuzz_patterns() {
    fuzz().for_each(|bytes: &[u8]| {
        let letters = |bytes: &[u8]| -> String {
            bytes.iter().take(8).map(|b| char::from(b"*ab"[usize::from(*b) % 3])).collect()
        };
        let (one, two) = bytes.split_at(bytes.len() / 2);
        let (pattern, text) = (letters(one), letters(two));
        if let Some(compiled) = ValuePattern::new(&pattern) {
            let expected = covers_slowly(pattern.as_bytes(), text.as_bytes());
            assert_eq!(compiled.covers(&text), expected, "{pattern} and {text}");
        }
    });
}
