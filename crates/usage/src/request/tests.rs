//! Requests as clients send them, and malformed ones.

use super::prefixes::PromptPrefixes;
use super::{MEDIA_TOKENS, ModelRequest, TOKENS_MAX};
use crate::Dialect;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::{Index, select};
use serde_json::{Value, json};

fn read(dialect: Dialect, body: &Value) -> ModelRequest {
    ModelRequest::read(dialect, body.to_string().as_bytes(), None)
}

fn text(tokens: usize) -> String {
    "word".repeat(tokens)
}

fn image() -> String {
    format!("data:image/png;base64,{}", text(900))
}

#[test]
fn a_chat_is_read() {
    let request = read(
        Dialect::Chat,
        &json!({
            "model": "meta-llama/Llama-3.1-8B", "stream": true, "temperature": 0.5,
            "messages": [
                {"role": "system", "content": text(100)},
                {"role": "user", "content": [
                    {"type": "text", "text": text(50)},
                    {"type": "image_url", "image_url": {"url": image()}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                    {"type": "input_audio", "input_audio": {"data": text(9000), "format": "wav"}},
                ]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "call_1", "type": "function",
                        "function": {"name": "look", "arguments": text(20)}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": text(30)},
            ],
            "max_completion_tokens": 70, "n": 3,
        }),
    );
    assert_eq!(&*request.model, "meta-llama/Llama-3.1-8B");
    assert!(request.is_stream && !request.reports_usage);
    // The name of the function is one token, `wav` another.
    assert_eq!(request.prompt, 100 + 50 + 20 + 30 + 2 + 3 * MEDIA_TOKENS);
    assert_eq!(request.output_max, Some(210));
}

#[test]
fn the_other_dialects_are_read() {
    let request = read(
        Dialect::Completions,
        &json!({"prompt": [text(10), text(20)], "max_tokens": 5, "n": 2, "best_of": 4}),
    );
    assert_eq!((request.prompt, request.output_max), (30, Some(40)));
    assert!(!request.is_stream && request.reports_usage);

    let request = read(
        Dialect::Responses,
        &json!({"model": "m", "instructions": text(10), "stream": true, "max_output_tokens": 9,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": text(7)},
                {"type": "input_image", "image_url": image()},
                {"type": "input_file", "filename": "four", "file_data": text(900)}]}]}),
    );
    assert_eq!((request.prompt, request.output_max), (18 + 2 * MEDIA_TOKENS, Some(9)));
    assert!(request.is_stream && request.reports_usage);

    let request = read(
        Dialect::Messages,
        &json!({"model": "claude", "max_tokens": 1024, "stream": true,
            "messages": [{"role": "user", "content": [
                {"type": "image", "source":
                    {"type": "base64", "media_type": "image/jpeg", "data": text(900)}},
                {"type": "document", "source":
                    {"type": "text", "media_type": "text/plain", "data": text(60)}},
                {"type": "tool_result", "tool_use_id": "four", "content": [
                    {"type": "image", "source": {"type": "base64", "data": text(900)}}]},
                {"type": "text", "text": text(40), "cache_control": {"type": "ephemeral"}}]}],
            "system": [{"type": "text", "text": text(5)}]}),
    );
    assert_eq!((request.prompt, request.output_max), (106 + 2 * MEDIA_TOKENS, Some(1024)));
    assert!(request.is_stream && request.reports_usage);

    let request = read(Dialect::Embeddings, &json!({"model": "m", "input": [text(4), text(5)]}));
    assert_eq!((request.prompt, request.output_max), (9, Some(0)));
    let request = read(
        Dialect::Embeddings,
        &json!({"query": text(4), "documents": [text(5), {"text": text(6)}]}),
    );
    assert_eq!(request.prompt, 15);
}

#[test]
fn ollama_streams_unless_told_otherwise() {
    let chat = json!({"model": "llama3.2", "messages": [
        {"role": "user", "content": text(8), "images": [text(900)]}],
        "options": {"num_predict": 42}});
    let request = read(Dialect::Ollama, &chat);
    assert_eq!((request.prompt, request.output_max), (8 + MEDIA_TOKENS, Some(42)));
    assert!(request.is_stream && request.reports_usage);
    let generate = json!({"model": "m", "prompt": text(3), "system": text(2), "context": [1, 2, 3],
        "images": [text(900), text(900)], "stream": false, "options": {"num_predict": -1}});
    let request = read(Dialect::Ollama, &generate);
    assert_eq!((request.prompt, request.output_max), (8 + 2 * MEDIA_TOKENS, None));
    assert!(!request.is_stream);
    assert!(!read(Dialect::OllamaEmbeddings, &json!({"input": ["a"]})).is_stream);
}

#[test]
fn prompts_of_tokens_count_each() {
    for (prompt, tokens, prompts) in
        [(json!([1, 2, 3]), 3, 1), (json!([[1, 2, 3], [4, 5]]), 5, 2), (json!([]), 0, 1)]
    {
        let request = read(Dialect::Completions, &json!({"prompt": prompt, "max_tokens": 10}));
        assert_eq!((request.prompt, request.output_max), (tokens, Some(10 * prompts)));
    }
}

#[test]
fn declarations_of_tools_count_by_their_length() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object",
        "properties": {"a": {"type": "string", "description": text(10)}}}}}]);
    let request = read(Dialect::Chat, &json!({"tools": tools, "messages": []}));
    assert_eq!(request.prompt, (tools.to_string().len() as u64).div_ceil(4));
}

#[test]
fn what_was_not_seen_counts_by_its_length() {
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": text(1000)}]}).to_string();
    let request =
        ModelRequest::read(Dialect::Chat, &body.as_bytes()[..2060], Some(body.len() as u64));
    assert!((1000..1010).contains(&request.prompt), "{}", request.prompt);
    // All of it is one image.
    let body =
        json!({"messages": [{"content": [{"image_url": {"url": text(9_000)}}]}]}).to_string();
    let request =
        ModelRequest::read(Dialect::Chat, &body.as_bytes()[..2048], Some(body.len() as u64));
    assert_eq!(request.prompt, MEDIA_TOKENS);
    // Only the length is known.
    assert_eq!(ModelRequest::read(Dialect::Chat, b"", Some(4_000)).prompt, 1_000);
    assert_eq!(ModelRequest::read(Dialect::Chat, b"\x1f\x8b\x08", Some(4_000)).prompt, 1_000);
    assert_eq!(ModelRequest::read(Dialect::Chat, b"", None).prompt, 0);
    assert_eq!(ModelRequest::read(Dialect::Chat, b"", Some(u64::MAX)).prompt, TOKENS_MAX);
}

#[test]
fn a_form_is_one_recording() {
    let form = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\x00\x01";
    assert_eq!(ModelRequest::read(Dialect::Media, form, Some(5_000_000)).prompt, MEDIA_TOKENS);
    assert_eq!(read(Dialect::Media, &json!({"prompt": text(12)})).prompt, 12);
}

#[test]
fn odd_members_do_no_harm() {
    for (member, output_max) in [
        (r#""max_tokens":12.0"#, Some(12)),
        (r#""max_tokens":-1"#, None),
        (r#""max_tokens":null"#, None),
        (r#""max_tokens":"9""#, None),
        (r#""max_tokens":1e300,"n":1e300"#, Some(TOKENS_MAX)),
        (r#""max_tokens":99999999999999999999999,"n":99999999999999999999"#, Some(TOKENS_MAX)),
        (r#""max_tokens":5,"n":0"#, Some(5)),
        (r#""max_tokens":5,"n":-3"#, Some(5)),
        (r#""max_tokens":5,"max_tokens":6"#, Some(6)),
        (r#""max_tokens":6,"max_tokens":5"#, Some(6)),
        (r#""max_tokens":5,"max_completion_tokens":8"#, Some(8)),
        (r#""max_tokens":8,"max_completion_tokens":5"#, Some(8)),
        (r#""max_tokens":5,"max_tokens":null"#, None),
        (r#""max_tokens":5,"max_tokens":"9000""#, None),
        (r#""max_tokens":null,"max_tokens":5"#, Some(5)),
        (r#""max_tokens":2000,"max_output_tokens":1,"options":{"num_predict":1}"#, Some(2000)),
        (r#""max_output_tokens":1,"options":{"num_predict":1}"#, None),
        (r#""max_\u0074okens":5"#, Some(5)),
    ] {
        let request = ModelRequest::read(Dialect::Chat, format!("{{{member}}}").as_bytes(), None);
        assert_eq!(request.output_max, output_max, "{member}");
    }
    let name = format!(r#"{{"model":"{}é"}}"#, "a".repeat(199));
    let request = ModelRequest::read(Dialect::Chat, name.as_bytes(), None);
    assert_eq!(&*request.model, "a".repeat(199));
}

fn conversation(messages: usize, length: usize) -> Vec<Value> {
    let one = |index: usize| {
        let role = if index.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("{index} ").repeat(length)})
    };
    (0..messages).map(one).collect()
}

#[test]
fn requests_of_a_conversation_share_the_shorter_prefixes() {
    let first = json!({"model": "m", "messages": conversation(3, 400)});
    let first = read(Dialect::Chat, &first).prefixes;
    assert!(first.0[1] != 0 && first.0[2] == 0, "{first:?}");
    let later = format!(
        r#"{{"temperature":1,"messages":{},"stream":true,"model":"x"}}"#,
        Value::from(conversation(40, 400))
    );
    let later = ModelRequest::read(Dialect::Chat, later.as_bytes(), None).prefixes;
    assert_eq!(later.0[..2], first.0[..2]);
    assert!(later.0[3] != 0);
    let other = json!({"messages": [{"role": "system", "content": "1".repeat(600)}]});
    assert_ne!(read(Dialect::Chat, &other).prefixes.0[0], first.0[0]);
}

#[test]
fn the_system_prompt_comes_first_wherever_it_stands() {
    let system = "You are kind. ".repeat(100);
    let of = |messages: usize, system_last: bool| {
        let messages = Value::from(conversation(messages, 20));
        let system = format!(
            r#""system":[{{"type":"text","text":"{system}","cache_control":{{"type":"x"}}}}]"#
        );
        let body = match system_last {
            true => format!(r#"{{"max_tokens":9,"messages":{messages},{system}}}"#),
            false => format!(r#"{{{system},"messages":{messages}}}"#),
        };
        ModelRequest::read(Dialect::Messages, body.as_bytes(), None).prefixes
    };
    let (one, two) = (of(1, true), of(60, true));
    assert!(one.0[0] != 0 && one.0[0] == two.0[0]);
    assert_eq!(two, of(60, false));
}

#[test]
fn a_mark_for_the_cache_that_moves_changes_no_prefix() {
    let mut first = conversation(4, 300);
    let mut later = conversation(8, 300);
    for messages in [&mut first, &mut later] {
        let last = messages.last_mut().expect("a message");
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    let [first, later] = [first, later]
        .map(|messages| read(Dialect::Messages, &json!({"messages": messages})).prefixes);
    assert_eq!(first.0[..2], later.0[..2]);
    assert_ne!(first.0[1], 0);
}

#[test]
fn a_prompt_that_is_as_long_as_a_prefix_has_its_hash() {
    let length = PromptPrefixes::LENGTHS[0] - 1;
    let of =
        |length: usize| read(Dialect::Completions, &json!({"prompt": "x".repeat(length)})).prefixes;
    assert_eq!(of(length - 1).0[0], 0);
    assert_ne!(of(length).0[0], 0);
    assert_eq!(of(length).0[0], of(length + 9).0[0]);
}

fn asked(body: &str) -> Option<String> {
    let request = ModelRequest::read(Dialect::Chat, body.as_bytes(), None);
    let asked = request.asking_for_usage(body.as_bytes())?;
    Some(String::from_utf8(asked).expect("text"))
}

#[test]
fn a_stream_is_asked_for_its_usage() {
    for (body, asks) in [
        (r#"{"stream":true}"#, Some(r#"{"stream_options":{"include_usage":true},"stream":true}"#)),
        (
            " { \"stream\" : true , \"x\" : 1.0 } ",
            Some(
                " {\"stream_options\":{\"include_usage\":true}, \"stream\" : true , \"x\" : 1.0 } ",
            ),
        ),
        (
            r#"{"stream":true,"stream_options":null}"#,
            Some(r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
        ),
        (
            r#"{"stream":true,"stream_options":{ }}"#,
            Some(r#"{"stream":true,"stream_options":{"include_usage":true }}"#),
        ),
        (
            r#"{"stream_options":{"a":[{"b":1}]},"stream":true}"#,
            Some(r#"{"stream_options":{"include_usage":true,"a":[{"b":1}]},"stream":true}"#),
        ),
        (
            r#"{"stream":true,"stream_\u006fptions":{"include_usage":false,"a":1}}"#,
            Some(r#"{"stream":true,"stream_\u006fptions":{"include_usage":true,"a":1}}"#),
        ),
        (
            r#"{"stream":true,"stream_options":{"a":1,"include_usage": null }}"#,
            Some(r#"{"stream":true,"stream_options":{"a":1,"include_usage": true }}"#),
        ),
        // No change is needed.
        (r#"{"stream":false}"#, None),
        (r#"{}"#, None),
        (r#"{"stream":true,"stream_options":{"include_usage":true}}"#, None),
        // Ambiguous.
        (r#"{"stream":true,"stream_options":{},"stream_options":{}}"#, None),
        (r#"{"stream":true,"stream_options":{"include_usage":false,"include_usage":false}}"#, None),
        (r#"{"stream":false,"stream":true}"#, None),
        (r#"{"stream":true,"stream_options":[]}"#, None),
        (r#"{"stream":true,"stream_options":"x"}"#, None),
        (r#"{"stream":true,"stream_options":1}"#, None),
        (r#"{"stream":true,"stream_options":{"include_usage":"true"}}"#, None),
        (r#"{"stream":true,"stream_options":{"include_usage":0}}"#, None),
        (r#"{"stream":true,"stream_options":{"include_usage":{}}}"#, None),
        // Not JSON.
        (r#"{"stream":true"#, None),
        (r#"{"stream":true} x"#, None),
        (r#"{"stream":true,"a":nan}"#, None),
        (r#"[{"stream":true}]"#, None),
    ] {
        assert_eq!(asked(body).as_deref(), asks, "{body}");
    }
    let body = br#"{"stream":true}"#;
    for dialect in [Dialect::Responses, Dialect::Messages, Dialect::Ollama, Dialect::Embeddings] {
        let request = ModelRequest::read(dialect, body, None);
        assert!(request.reports_usage && request.asking_for_usage(body).is_none());
    }
    let request = ModelRequest::read(Dialect::Completions, body, None);
    assert!(request.asking_for_usage(body).is_some());
}

const MEMBERS: [&str; 14] = [
    r#""model":"m""#,
    r#""stream":true"#,
    r#""stream" : true"#,
    r#""stream":false"#,
    r#""messages":[{"role":"user","content":"a\n\"stream_options\":{}"}]"#,
    r#""stream_options":null"#,
    r#""stream_options":{}"#,
    r#""stream_options": { "include_usage" : false , "b" : [1] }"#,
    r#""stream_options":{"continuous_usage_stats":true}"#,
    r#""stream_options":{"include_usage":true}"#,
    r#""stream_options":{"x":{"include_usage":false}}"#,
    r#""metadata":{"stream_options":{},"stream":true}"#,
    r#""temperature":1e0"#,
    r#""":{}"#,
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn nothing_but_the_option_changes(
        members in vec(select(&MEMBERS[..]), 0..7),
        space in select(&["", " ", "\n\t"][..]),
    ) {
        let body = format!("{{{space}{}{space}}}{space}", members.join(&format!(",{space}")));
        let Some(asked) = asked(&body) else { return Ok(()) };
        let (mut before, after): (Value, Value) =
            (body.parse().expect("JSON"), asked.parse().expect("JSON"));
        prop_assert_eq!(&after["stream"], true);
        prop_assert_eq!(&after["stream_options"]["include_usage"], true);
        if !before["stream_options"].is_object() {
            before["stream_options"] = json!({});
        }
        before["stream_options"]["include_usage"] = true.into();
        prop_assert_eq!(before, after);
        // The texts differ at one place only.
        let same = body.bytes().zip(asked.bytes()).take_while(|(one, two)| one == two).count();
        let behind = body.bytes().rev().zip(asked.bytes().rev());
        let same = same + behind.take_while(|(one, two)| one == two).count();
        prop_assert!(same >= body.len() - "false".len(), "{} {}", body, asked);
    }

    #[test]
    fn a_body_that_is_cut_is_read_as_far_as_it_goes(
        cut in any::<Index>(),
        length in 0..3_000_usize,
    ) {
        let body = json!({"model": "m", "messages": conversation(5, length / 5)}).to_string();
        let cut = cut.index(body.len() + 1);
        let whole = ModelRequest::read(Dialect::Chat, body.as_bytes(), None);
        let (begin, length) = (&body.as_bytes()[..cut], body.len() as u64);
        let some = ModelRequest::read(Dialect::Chat, begin, Some(length));
        prop_assert!(some.prompt + 1 >= whole.prompt && some.prompt <= whole.prompt + 60);
        for (some, whole) in some.prefixes.0.iter().zip(whole.prefixes.0) {
            prop_assert!(*some == 0 || *some == whole);
        }
    }
}

#[test]
fn fuzz_model_request() {
    let begins =
        [&b""[..], b"{\"messages\":[{\"content\":", b"{\"prompt\":[", b"{\"stream\":true,"];
    evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, u8)>().for_each(|(bytes, form)| {
        let dialects = [Dialect::Chat, Dialect::Completions, Dialect::Media, Dialect::Ollama];
        let body = [begins[usize::from(*form) % 4], &bytes[..]].concat();
        let dialect = dialects[usize::from(*form) / 4 % 4];
        let request = ModelRequest::read(dialect, &body, Some(u64::from(*form) * 7));
        assert!(request.prompt <= TOKENS_MAX && request.model.len() <= 600);
        if let Some(asked) = request.asking_for_usage(&body) {
            let asked: Value = serde_json::from_slice(&asked).expect("JSON");
            assert_eq!(asked["stream_options"]["include_usage"], true);
        }
    });
}
