//! Answers as servers send them, and as they should not, however they are cut.

use super::UsageReader;
use crate::{Dialect, TOKENS_MAX, TokenUsage};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use proptest::sample::{Index, select};
use std::io::Write;

const EVENTS: &[u8] = b"text/event-stream; charset=utf-8";
const JSON: &[u8] = b"application/json";
const LINES: &[u8] = b"application/x-ndjson";

type Found = (Option<TokenUsage>, u64);

fn read_pieces(dialect: Dialect, kind: &[u8], coding: &[u8], pieces: &[&[u8]]) -> Found {
    let mut reader = UsageReader::new(dialect, kind, coding).expect("a coding");
    pieces.iter().for_each(|piece| reader.read(piece));
    (reader.stated(), reader.counted())
}

fn read(dialect: Dialect, kind: &[u8], text: &str) -> Found {
    read_pieces(dialect, kind, b"", &[text.as_bytes()])
}

fn usage(prompt: u64, cached: u64, output: u64) -> Option<TokenUsage> {
    Some(TokenUsage { prompt, cached, output })
}

/// An answer of a server, and what it says.
struct Golden {
    server: &'static str,
    dialect: Dialect,
    kind: &'static [u8],
    text: &'static str,
    found: Found,
}

fn golden(
    server: &'static str,
    dialect: Dialect,
    kind: &'static [u8],
    text: &'static str,
    (prompt, cached, output): (u64, u64, u64),
    counted: u64,
) -> Golden {
    Golden { server, dialect, kind, text, found: (usage(prompt, cached, output), counted) }
}

fn goldens() -> Vec<Golden> {
    let mut all = chats();
    all.extend(others());
    all
}

fn chats() -> Vec<Golden> {
    use Dialect::{Chat, Completions};
    vec![
        golden("OpenAI", Chat, JSON, include_str!("tests/openai.json"), (19, 12, 10), 0),
        golden("OpenAI", Chat, EVENTS, include_str!("tests/openai.sse"), (19, 0, 10), 2),
        golden(
            "OpenAI, tools",
            Chat,
            EVENTS,
            include_str!("tests/openai_tools.sse"),
            (82, 0, 17),
            4,
        ),
        golden("Azure", Chat, EVENTS, include_str!("tests/azure.sse"), (9, 0, 3), 1),
        golden("vLLM", Chat, EVENTS, include_str!("tests/vllm.sse"), (25, 16, 2), 2),
        golden("vLLM", Completions, EVENTS, include_str!("tests/vllm_text.sse"), (6, 0, 2), 2),
        golden("SGLang", Chat, EVENTS, include_str!("tests/sglang.sse"), (14, 0, 3), 2),
        golden("llama.cpp", Chat, EVENTS, include_str!("tests/llama.sse"), (237, 236, 3), 1),
        golden("llama.cpp", Chat, EVENTS, include_str!("tests/llama_bare.sse"), (237, 236, 35), 1),
        golden("TGI", Chat, EVENTS, include_str!("tests/tgi.sse"), (37, 0, 3), 3),
        golden("DeepSeek", Chat, EVENTS, include_str!("tests/deepseek.sse"), (17, 11, 9), 3),
        golden("Gemini", Chat, EVENTS, include_str!("tests/gemini.sse"), (20, 0, 603), 2),
        golden("Groq", Chat, EVENTS, include_str!("tests/groq.sse"), (44, 0, 3), 1),
        golden("OpenRouter", Chat, EVENTS, include_str!("tests/openrouter.sse"), (12, 0, 5), 2),
        golden("LiteLLM", Chat, JSON, include_str!("tests/litellm.json"), (2013, 2000, 8), 0),
    ]
}

fn others() -> Vec<Golden> {
    use Dialect::{Embeddings, Media, Messages, Ollama, OllamaEmbeddings, Responses};
    vec![
        golden("OpenAI", Responses, EVENTS, include_str!("tests/responses.sse"), (37, 5, 11), 2),
        golden("OpenAI", Responses, JSON, include_str!("tests/responses.json"), (36, 0, 87), 0),
        golden(
            "Anthropic",
            Messages,
            EVENTS,
            include_str!("tests/anthropic.sse"),
            (2053, 2028, 15),
            3,
        ),
        golden(
            "Anthropic",
            Messages,
            JSON,
            include_str!("tests/anthropic.json"),
            (303, 100, 503),
            0,
        ),
        golden("GLM", Messages, EVENTS, include_str!("tests/glm.sse"), (18, 0, 6), 1),
        golden("Ollama", Ollama, LINES, include_str!("tests/ollama.ndjson"), (26, 0, 4), 2),
        golden("Ollama", Ollama, LINES, include_str!("tests/ollama_generate.ndjson"), (0, 0, 3), 3),
        golden(
            "Ollama",
            OllamaEmbeddings,
            JSON,
            include_str!("tests/ollama_embed.json"),
            (8, 0, 0),
            0,
        ),
        golden("OpenAI", Embeddings, JSON, include_str!("tests/embeddings.json"), (8, 0, 0), 0),
        golden("vLLM", Embeddings, JSON, include_str!("tests/rerank.json"), (56, 0, 0), 0),
        golden("OpenAI", Media, JSON, include_str!("tests/image.json"), (50, 0, 50), 0),
        golden("OpenAI", Media, JSON, include_str!("tests/transcription.json"), (14, 0, 101), 0),
        golden("OpenAI", Media, EVENTS, include_str!("tests/transcription.sse"), (14, 0, 45), 2),
    ]
}

#[test]
fn answers_of_real_servers_are_read() {
    for Golden { server, dialect, kind, text, found } in goldens() {
        assert_eq!(read(dialect, kind, text), found, "{server} {dialect:?}");
    }
}

#[test]
fn the_first_byte_tells_the_format() {
    for Golden { server, dialect, text, found, .. } in goldens() {
        for kind in [&b""[..], b"text/plain", b"application/octet-stream"] {
            assert_eq!(read(dialect, kind, text), found, "{server} {dialect:?}");
            let text = format!("\u{feff}\n {}", text.trim_start());
            let pieces: Vec<_> = text.as_bytes().chunks(1).collect();
            assert_eq!(read_pieces(dialect, kind, b"", &pieces), found, "{server} {dialect:?}");
        }
    }
}

#[test]
fn any_cut_gives_the_same() {
    for Golden { server, dialect, kind, text, found } in goldens() {
        for cut in 0..text.len() {
            let (one, two) = text.as_bytes().split_at(cut);
            assert_eq!(read_pieces(dialect, kind, b"", &[one, two]), found, "{server} {cut}");
        }
    }
}

#[test]
fn line_ends_make_no_difference() {
    for Golden { server, dialect, kind, text, found } in goldens() {
        for end in ["\r\n", "\r"] {
            assert_eq!(read(dialect, kind, &text.replace('\n', end)), found, "{server} {end:?}");
        }
    }
}

#[test]
fn compressed_answers_are_read() {
    for Golden { server, dialect, kind, text, found } in goldens() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        // As a server does that flushes after each event.
        for piece in text.split_inclusive("\n\n") {
            gzip.write_all(piece.as_bytes()).and_then(|()| gzip.flush()).expect("memory");
            zlib.write_all(piece.as_bytes()).and_then(|()| zlib.flush()).expect("memory");
        }
        let (gzip, zlib) = (gzip.finish().expect("memory"), zlib.finish().expect("memory"));
        for (coding, bytes) in [(&b"gzip"[..], &gzip), (b"X-GZIP", &gzip), (b" deflate", &zlib)] {
            for length in [1, 7, usize::MAX] {
                let pieces: Vec<_> = bytes.chunks(length).collect();
                assert_eq!(read_pieces(dialect, kind, coding, &pieces), found, "{server}");
            }
        }
    }
    for coding in [&b"br"[..], b"zstd", b"gzip, br", b"x"] {
        assert!(UsageReader::new(Dialect::Chat, JSON, coding).is_none());
    }
}

#[test]
fn what_a_compressed_stream_states_is_known_at_once() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    let mut reader = UsageReader::new(Dialect::Chat, EVENTS, b"gzip").expect("a coding");
    for count in 1..=5 {
        gzip.write_all(DELTA.as_bytes()).and_then(|()| gzip.flush()).expect("memory");
        reader.read(&std::mem::take(gzip.get_mut()));
        assert_eq!(reader.counted(), count);
    }
}

#[test]
fn a_bomb_is_read_in_proportion() {
    let usage = br#"{"usage":{"prompt_tokens":1,"completion_tokens":2}"#;
    let read = |spaces: usize| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&[&vec![b' '; spaces], &usage[..], b"}"].concat()).expect("memory");
        read_pieces(Dialect::Chat, JSON, b"gzip", &[&gzip.finish().expect("memory")]).0
    };
    assert!(read(500_000).is_some());
    assert_eq!(read(50_000_000), None);
}

const DELTA: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

fn chat(text: &str) -> Option<TokenUsage> {
    read(Dialect::Chat, JSON, text).0
}

#[test]
fn odd_usages_do_no_harm() {
    let most = TOKENS_MAX;
    for (members, found) in [
        (r#""prompt_tokens":12.0,"completion_tokens":3e0"#, usage(12, 0, 3)),
        (r#""prompt_tokens":-12,"completion_tokens":3"#, usage(0, 0, 3)),
        (r#""prompt_tokens":99999999999999999999,"completion_tokens":1e99"#, usage(most, 0, most)),
        (r#""pr\u006fmpt_tokens":5,"completion_tokens":3"#, usage(5, 0, 3)),
        (
            r#""prompt_tokens":5,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":9}"#,
            usage(5, 5, 3),
        ),
        (r#""prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":null"#, usage(5, 0, 3)),
        (
            r#""prompt_tokens":5,"total_tokens":8,"prompt_tokens_details":[{"cached_tokens":9}]"#,
            usage(5, 0, 3),
        ),
        (r#""prompt_tokens":5,"completion_tokens":null,"total_tokens":5"#, usage(5, 0, 0)),
        (r#""prompt_tokens":"5","completion_tokens":{"a":1}"#, None),
        (r#""x":{"prompt_tokens":5}"#, None),
        ("", None),
    ] {
        assert_eq!(chat(&format!(r#"{{"usage":{{{members}}}}}"#)), found, "{members}");
    }
    let deep = format!(
        r#"{{"a":{}1{},"usage":{{"prompt_tokens":5}}}}"#,
        "[".repeat(9999),
        "]".repeat(9999)
    );
    assert_eq!(chat(&deep), usage(5, 0, 0));
    // Of two the last one counts; null is none.
    let twice = r#"{"usage":{"prompt_tokens":5},"usage":{"prompt_tokens":6},"usage":null}"#;
    assert_eq!(chat(twice), usage(6, 0, 0));
    for text in ["", "x", "{", "[]", "null", r#"{"usage":5}"#, r#"{"usage":[{"prompt_tokens":5}]}"#]
    {
        assert_eq!(chat(text), None, "{text}");
    }
    let inside = r#"{"choices":[{"text":"{\"usage\":{\"prompt_tokens\":5}}"},
        {"usage":{"prompt_tokens":5}}]}"#;
    assert_eq!(chat(inside), None);
}

#[test]
fn a_usage_is_known_before_the_answer_ends() {
    let text = r#"{"usage":{"prompt_tokens":5,"completion_tokens":6}"#;
    assert_eq!(chat(text), usage(5, 0, 6));
    assert_eq!(chat(text.trim_end_matches('}')), None);
}

#[test]
fn a_large_answer_is_read_to_its_end() {
    let vector = format!("[{}0.5]", "-0.0123,".repeat(4096));
    let item = format!(r#"{{"object":"embedding","embedding":{vector},"index":0}}"#);
    let items = vec![&item[..]; 64].join(",");
    let text = format!(r#"{{"data":[{items}],"usage":{{"prompt_tokens":8,"total_tokens":8}}}}"#);
    let pieces: Vec<_> = text.as_bytes().chunks(1460).collect();
    let found = read_pieces(Dialect::Embeddings, JSON, b"", &pieces);
    assert_eq!(found, (usage(8, 0, 0), 0));
}

#[test]
fn pieces_of_a_stream_are_counted() {
    for (delta, counted) in [
        (r#"{"content":"a"}"#, 1),
        (r#"{"content":""}"#, 0),
        (r#"{"role":"assistant","content":null}"#, 0),
        (r#"{"content":"sixteen letters."}"#, 4),
        (r#"{"content":"\u20ac\u20ac\u20ac"}"#, 2),
        (r#"{"reasoning_content":"a"}"#, 1),
        (r#"{"reasoning":"a","reasoning_content":"a"}"#, 1),
        (r#"{"refusal":"a"}"#, 1),
        (r#"{"content":[{"type":"text","text":"a"}]}"#, 1),
        (r#"{"tool_calls":[{"function":{"arguments":"{"}},{"function":{"arguments":"a"}}]}"#, 2),
        (r#"{"function_call":{"arguments":"a"}}"#, 1),
        (r#"{"audio":{"data":"AAAAAAAAAAAAAAAAAAAA","transcript":"a"}}"#, 1),
        (r#"{"x":{"content":"a"}}"#, 0),
    ] {
        let text = format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
        assert_eq!(read(Dialect::Chat, EVENTS, &text), (None, counted), "{delta}");
    }
    let two =
        r#"{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}"#;
    assert_eq!(read(Dialect::Chat, EVENTS, &format!("data: {two}\n\n")), (None, 2));
    let sound = r#"{"delta":"AAAAAAAAAAAAAAAAAAAA","type":"response.audio.delta"}"#;
    assert_eq!(read(Dialect::Responses, EVENTS, &format!("data: {sound}\n\n")), (None, 0));
    let tools = r#"{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":"b"}}}]}}"#;
    assert_eq!(read(Dialect::Ollama, LINES, tools), (None, 2));
}

#[test]
fn an_error_leaves_what_was_counted() {
    let error = "event: error\ndata: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    for rest in
        [error, "data: {\"choices\":[{\"delta\":{\"content\":\"a", "data: garbage\n\n\0\0\n\n"]
    {
        let text = [DELTA, DELTA, rest].concat();
        assert_eq!(read(Dialect::Chat, EVENTS, &text), (None, 2));
    }
    let text = [DELTA, error, DELTA].concat();
    assert_eq!(read(Dialect::Chat, EVENTS, &text), (None, 2));
}

#[test]
fn the_newest_usage_of_a_stream_counts() {
    let chunk = |output: u64| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}],\"usage\":\
             {{\"prompt_tokens\":7,\"completion_tokens\":{output},\"total_tokens\":{}}}}}\n\n",
            output + 7
        )
    };
    let mut reader = UsageReader::new(Dialect::Chat, EVENTS, b"").expect("a coding");
    for output in 1..5 {
        reader.read(chunk(output).as_bytes());
        assert_eq!((reader.stated(), reader.counted()), (usage(7, 0, output), output));
    }
}

#[test]
fn garbage_between_lines_is_passed_over() {
    let text =
        "{\"response\":\"a\"}\nnot json\n{\"response\":\"b\"}\n{\"done\":true,\"eval_count\":2}\n";
    assert_eq!(read(Dialect::Ollama, LINES, text), (usage(0, 0, 2), 2));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_pieces_give_the_same(
        golden in 0..28_usize,
        cuts in vec(any::<Index>(), 0..20),
    ) {
        let goldens = goldens();
        let Golden { dialect, kind, text, found, .. } = &goldens[golden % goldens.len()];
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|two| &text.as_bytes()[two[0]..two[1]]).collect();
        prop_assert_eq!(read_pieces(*dialect, kind, b"", &pieces), *found);
    }

    #[test]
    fn odd_streams_are_read_alike_in_any_pieces(
        parts in vec(select(&[
            "data: ", "{", "}", "\n", "\r", "\"usage\":", "\"prompt_tokens\":", "7", ",", "[", "]",
            "\"choices\":", "\"delta\":", "\"content\":", "\"a\"", "\\", "\"", ":",
            "\u{feff}", DELTA,
        ][..]), 0..30),
        cut in any::<Index>(),
        kind in select(&[EVENTS, JSON, b""][..]),
    ) {
        let text = parts.concat();
        let (one, two) = text.as_bytes().split_at(cut.index(text.len() + 1));
        let whole = read(Dialect::Chat, kind, &text);
        prop_assert_eq!(read_pieces(Dialect::Chat, kind, b"", &[one, two]), whole);
    }
}

#[test]
fn fuzz_usage_reader() {
    let dialects = [Dialect::Chat, Dialect::Messages, Dialect::Responses, Dialect::Ollama];
    evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, u8)>().for_each(|(bytes, form)| {
        let form = usize::from(*form);
        let dialect = dialects[form % 4];
        let kind = [EVENTS, JSON, b""][form / 4 % 3];
        let coding = [&b""[..], b"gzip", b"deflate"][form / 12 % 3];
        let begin =
            [&b""[..], b"data: {\"usage\":{\"prompt_tokens\":", b"\x1f\x8b\x08\0\0\0\0\0\0\0"];
        let text = [begin[form / 36 % 3], &bytes[..]].concat();
        let pieces: Vec<_> = text.chunks(form / 8 + 1).collect();
        let found = read_pieces(dialect, kind, coding, &pieces);
        if coding.is_empty() {
            assert_eq!(found, read_pieces(dialect, kind, coding, &[&text]));
        }
        assert!(
            found.0.is_none_or(|usage| usage.prompt <= TOKENS_MAX && usage.cached <= usage.prompt)
        );
    });
}
