//! The event with the usage is taken out, at once, and nothing else is changed.

use super::{HELD_BYTES_MAX, UsageEventRemover};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, any, prop_assert_eq, proptest};
use proptest::{prop_oneof, sample::Index};

/// The bytes that pass of a stream that arrives in `pieces`: after each of them, and at the end.
fn passed(pieces: &[&[u8]]) -> Vec<Bytes> {
    let mut remover = UsageEventRemover::new();
    let mut passed: Vec<_> =
        pieces.iter().map(|piece| remover.pass(Bytes::copy_from_slice(piece))).collect();
    passed.push(remover.finish());
    passed
}

fn whole(stream: &[u8]) -> String {
    String::from_utf8(passed(&[stream]).concat()).expect("text")
}

const USAGE: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\
    \"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\
    \"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n";
const DELTA: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\
    \"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// Events that only state a usage, as servers write them.
const REMOVED: [&str; 7] = [
    USAGE,
    "data: {\"choices\":[],\"created\":1758108431,\"id\":\"c\",\"model\":\"m\",\
     \"system_fingerprint\":\"b6497\",\"object\":\"chat.completion.chunk\",\"usage\":\
     {\"completion_tokens\":31,\"prompt_tokens\":75,\"total_tokens\":106},\"timings\":\
     {\"cache_n\":0,\"prompt_n\":75,\"predicted_n\":31}}\n\n",
    "data:{\"usage\":{\"prompt_tokens\":1},\"choices\":[ ]}\n\n",
    "data: {\"us\\u0061ge\":{},\"choices\":[]}\n\n",
    "event: message\ndata: {\"choices\":\ndata: [],\"usage\":{}}\nid: 7\n\n",
    "data: {\"choices\":[],\"usage\":{}}\r\n\r\n",
    "data: {\"choices\":[],\"usage\":{\"choices\":[1]}}\r\r",
];

/// Events that pass, among them some that nearly look like those.
const PASSING: [&str; 21] = [
    DELTA,
    DONE,
    ": a comment\n\n",
    ": OPENROUTER PROCESSING\r\n\r\n",
    "\n",
    "\r\n",
    "retry: 3000\n\n",
    "event: error\ndata: {\"error\":{\"message\":\"no\"}}\n\n",
    "data: {\"choices\":[],\"usage\":null}\n\n",
    "data: {\"choices\":[],\"prompt_filter_results\":[{\"prompt_index\":0}]}\n\n",
    "data: {\"choices\":[{\"delta\":{}}],\"usage\":{\"prompt_tokens\":1}}\n\n",
    "data: {\"usage\":{\"prompt_tokens\":1},\"choices\":[0]}\n\n",
    "data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
    "data: {\"choices\":{},\"usage\":{}}\n\n",
    "data: {\"choices\":[],\"usage\":[]}\n\n",
    "data: {\"choices\":[],\"usage\":{}} x\n\n",
    "data: [{\"choices\":[],\"usage\":{}}]\n\n",
    "data: {\"choices\":[],\"usage\":{}\n\n",
    "x: {\"choices\":[],\"usage\":{}}\n\n",
    "data: {\"choices\":[[]],\"usage\":{}}\n\n",
    "data\n\n",
];

#[test]
fn the_event_with_the_usage_is_removed() {
    for usage in REMOVED {
        let stream = [DELTA, usage, DONE].concat();
        assert_eq!(whole(stream.as_bytes()), [DELTA, DONE].concat(), "{usage}");
    }
}

#[test]
fn everything_else_passes_without_a_copy() {
    let stream = Bytes::from(PASSING.concat());
    let mut remover = UsageEventRemover::new();
    let passed = remover.pass(stream.clone());
    assert_eq!(passed, stream);
    assert_eq!(passed.as_ptr(), stream.as_ptr());
}

#[test]
fn a_line_break_behind_a_removed_event_stays() {
    let (usage, rest) = ("data: {\"choices\":[],\"usage\":{}}\r\n\r\n", "\r\n\r\ndata: 1\r\n\r\n");
    let stream = [usage, rest].concat();
    for cut in 0..stream.len() {
        let (one, two) = stream.as_bytes().split_at(cut);
        assert_eq!(passed(&[one, two]).concat(), rest.as_bytes(), "{cut}");
    }
}

#[test]
fn an_event_is_held_back_only_while_it_may_be_the_one() {
    let begin = DELTA.find("[{").expect("choices") + 1;
    // Up to here the two events are alike.
    let (one, two) = DELTA.as_bytes().split_at(begin);
    let [first, second, rest] = passed(&[one, two]).try_into().expect("three");
    assert_eq!((&first[..], &second[..], &rest[..]), (&b""[..], DELTA.as_bytes(), &b""[..]));
    // One byte later it is decided, so all that has arrived passes.
    let (one, two) = DELTA.as_bytes().split_at(begin + 1);
    let [first, second, rest] = passed(&[one, two]).try_into().expect("three");
    assert_eq!((&first[..], &second[..], &rest[..]), (one, two, &b""[..]));
}

#[test]
fn what_can_be_no_event_with_a_usage_passes_at_once() {
    for begin in [
        ": keep-ali",
        "\n",
        "data: [",
        "data: \"",
        "data: {\"choices\":{",
        "data: {\"choices\":[ {",
        "data: {\"usage\":null,",
        "data: {\"usage\":\"",
        "event: a\ndata: 1 ",
    ] {
        let [first, rest] = passed(&[begin.as_bytes()]).try_into().expect("two");
        assert_eq!((&first[..], &rest[..]), (begin.as_bytes(), &b""[..]), "{begin}");
    }
}

#[test]
fn an_event_without_its_end_passes_at_the_end() {
    let usage = USAGE.trim_end();
    let [first, rest] = passed(&[usage.as_bytes()]).try_into().expect("two");
    assert_eq!((&first[..], &rest[..]), (&b""[..], usage.as_bytes()));
}

#[test]
fn no_more_than_the_bound_is_held_back() {
    let begin = "data: {\"a\":\"";
    let mut remover = UsageEventRemover::new();
    let mut held = remover.pass(Bytes::from(begin)).len();
    assert_eq!(held, 0);
    let piece = Bytes::from("x".repeat(1024));
    for _ in 0..HELD_BYTES_MAX / 1024 {
        held += piece.len();
        let passed = remover.pass(piece.clone());
        if !passed.is_empty() {
            assert_eq!(passed.len(), begin.len() + held);
            assert_eq!(remover.pass(piece.clone()), piece);
            return;
        }
    }
    panic!("{held} bytes are held back");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn only_those_events_are_missing_however_the_stream_is_cut(
        events in vec((any::<bool>(), any::<Index>()), 0..8),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let (mut stream, mut expected) = (String::new(), String::new());
        for (is_usage, index) in events {
            // A CR before an LF would be one line break.
            let event = if is_usage { *index.get(&REMOVED) } else { *index.get(&PASSING) };
            if stream.ends_with('\r') && event.starts_with('\n') {
                continue;
            }
            stream.push_str(event);
            expected.push_str(if is_usage { "" } else { event });
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|two| &stream.as_bytes()[two[0]..two[1]]);
        let pieces: Vec<_> = pieces.collect();
        let passed = passed(&pieces).concat();
        prop_assert_eq!(String::from_utf8_lossy(&passed), expected);
    }

    #[test]
    fn streams_without_a_usage_pass_byte_for_byte(
        pieces in vec(prop_oneof![
            "[ -~\r\n]{0,20}",
            Just("data: {\"choices\":[],".to_string()),
            Just("\n\n".to_string()),
            Just("data: ".to_string()),
        ], 0..12),
    ) {
        let pieces: Vec<_> = pieces.iter().map(String::as_bytes).collect();
        prop_assert_eq!(passed(&pieces).concat(), pieces.concat());
    }
}

#[test]
fn fuzz_usage_event_remover() {
    evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, u8)>().for_each(|(bytes, cut)| {
        let is_usage = memchr::memmem::find(bytes, b"usage").is_some();
        let pieces: Vec<_> = bytes.chunks(usize::from(*cut) + 1).collect();
        assert!(is_usage || passed(&pieces).concat() == *bytes);
        let around = [USAGE.as_bytes(), bytes, b"\n\n", USAGE.as_bytes()].concat();
        let pieces: Vec<_> = around.chunks(usize::from(*cut) + 1).collect();
        assert_eq!(passed(&pieces).concat(), passed(&[&around]).concat());
    });
}
