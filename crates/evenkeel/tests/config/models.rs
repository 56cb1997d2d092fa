//! What people write before language models: the warnings about limits that count something else
//! than they seem to, and the errors that say how to write what was meant. How tokens and money are
//! counted: `proxy/models.rs`.

use super::{faults, good};
use evenkeel_config::{ProxyFlags, from_flags};

/// The warnings about a proxy with these keys, which begin in the second line.
fn warned(proxy: &str) -> String {
    good(&format!("proxy:\n{proxy}\n")).warnings.join("\n")
}

fn with_prices(prices: &str) -> String {
    warned(&format!(
        "  preset: openai\n  tokens:\n    prices: [{prices}]\n  \
         limits: [{{name: budget, by: api-key, unit: money, rate: 20/d}}]"
    ))
}

const ALL: &str = "{model: '*', prompt: 1, output: 4}";
const SOME: &str = "{model: 'gpt-4o*', prompt: 1, output: 4}";
const ONE: &str = "{model: gpt-4o-mini, prompt: 1, output: 4}";

#[test]
fn models_without_a_price_are_a_warning() {
    let told = with_prices(SOME);
    assert!(
        told.starts_with("t.yaml:4:13: models that match no price cost nothing under `budget`; ")
            && told.ends_with("end the list with `{model: \"*\", prompt: ..., output: ...}`"),
        "{told}"
    );
    for all in ["'*'", "'**'", "'re:.*'", "[b, '*']"] {
        let all = format!("{{model: {all}, prompt: 1, output: 4}}");
        assert_eq!(with_prices(&format!("{SOME}, {all}")), "", "{all}");
    }
    assert_eq!(
        warned(&format!("  preset: openai\n  tokens: {{prices: [{SOME}]}}")),
        "",
        "no limit"
    );
}

#[test]
fn a_price_that_never_applies_is_a_warning() {
    let told = with_prices(&format!("{ALL}, {SOME}"));
    let what = "this price never applies: the one in line 4, column 14 is for all of its models, \
                and the first one counts; move that one below it, or remove this one";
    assert_eq!(told, format!("t.yaml:4:50: {what}"));
    assert_eq!(with_prices(&format!("{ALL}, {SOME}, {ONE}")).lines().count(), 1, "once is enough");
    for prices in [
        format!("{SOME}, {ONE}, {ALL}"),
        format!("{ONE}, {{model: GPT-4O-MINI, prompt: 1, output: 4}}, {ALL}"),
        format!("{ALL}, {{model: 're:^o[13]', prompt: 1, output: 4}}"),
    ] {
        assert!(with_prices(&prices).contains("this price never applies"), "{prices}");
    }
    for prices in [
        format!("{ONE}, {SOME}, {ALL}"),
        format!("{SOME}, {{model: [gpt-4o, o3], prompt: 1, output: 4}}, {ALL}"),
        format!("{{model: 're:^gpt-.4$', prompt: 1, output: 4}}, {SOME}, {ALL}"),
        format!(
            "{{model: '*4*', prompt: 1, output: 4}}, {{model: 're:x4', prompt: 1, output: 4}}, \
                 {ALL}"
        ),
    ] {
        assert_eq!(with_prices(&prices), "", "{prices}");
    }
}

#[test]
fn a_rate_without_a_unit_is_a_warning_before_models() {
    let limit = "limits: [{name: a, by: api-key, rate: 100000/m}]";
    let what = "`rate` counts requests here; for tokens write `unit: tokens, rate: 100000/m`, for \
                requests `unit: hits`";
    for proxy in ["preset: openai", "cost: tokens"] {
        let told = warned(&format!("  {proxy}\n  {limit}"));
        assert_eq!(told, format!("t.yaml:3:41: {what}"), "{proxy}");
    }
    assert_eq!(warned(&format!("  {limit}")), "");
    for unit in ["hits", "tokens"] {
        let limit = limit.replace("rate", &format!("unit: {unit}, rate"));
        assert_eq!(warned(&format!("  preset: openai\n  {limit}")), "");
    }
    let shown = good(&format!("proxy: {{preset: openai, {limit}}}")).native;
    assert_eq!(good(&shown).warnings, [""; 0], "{shown}");
}

#[test]
fn a_limit_for_an_endpoint_that_is_not_counted_in_tokens_is_a_warning() {
    let limit = |more: &str| format!("  preset: openai\n  limits: [{{name: a, {more}}}]");
    let tokens = |when: &str| limit(&format!("by: api-key, unit: tokens, rate: 9/m, when: {when}"));
    let told = warned(&tokens("{path: /completion}"));
    let what = "requests to `/completion` are charged by time, not in tokens; refuse them with \
                `action: deny`, or count them with `unit: hits`";
    assert_eq!(told, format!("t.yaml:3:66: {what}"));
    for path in [
        "'*/infill'",
        "/generate",
        "/generate_stream",
        "/invocations",
        "'/v1beta/models/*:generateContent'",
        "'*:streamGenerateContent'",
        "[/v1/chat/completions, /completion]",
    ] {
        let warned = warned(&tokens(&format!("{{any: [{{path: {path}}}]}}")));
        assert!(warned.contains("are charged by time, not in tokens"), "{path}: {warned}");
    }
    let share = "by: api-key, share: 10%, when: {path: /generate}";
    assert!(warned(&limit(share)).contains("requests to `/generate` are charged by time"));
    for more in [
        "by: api-key, unit: hits, rate: 9/m, when: {path: /completion}",
        "by: api-key, unit: tokens, rate: 9/m, when: {path: /v1/completions}",
        "by: api-key, unit: tokens, rate: 9/m, when: {path: /api/generate}",
        "by: api-key, unit: tokens, rate: 9/m, when: {not: {path: /completion}}",
        "action: deny, when: {path: /completion}",
    ] {
        assert_eq!(warned(&limit(more)), "", "{more}");
    }
    assert_eq!(warned(&limit(share).replace("  preset: openai\n", "")), "");
}

#[test]
fn errors_say_how_to_write_what_was_meant() {
    for (text, told) in [
        (
            "{preset: openai, limits: [{name: a, by: api-key, tokens: 100000/m}]}",
            "1:57: unknown key `tokens` in `limits`; write `unit: tokens, rate: 100000/m`",
        ),
        (
            "{preset: openai, limits: [{name: a, by: api-key, tpm: 5000}]}",
            "1:57: unknown key `tpm` in `limits`; write `unit: tokens, rate: 5000/m`",
        ),
        (
            "{preset: openai, limits: [{name: a, by: api-key, rpm: many}]}",
            "1:57: unknown key `rpm` in `limits`; write `unit: hits, rate: 60/m`",
        ),
        (
            "{limits: [{name: a, by: ip/32, requests_per_second: 4}]}",
            "unknown key `requests_per_second` in `limits`; write `unit: hits, rate: 4/s`",
        ),
        (
            "{limits: [{name: a, by: ip/32, limit: 30/m}]}",
            "unknown key `limit` in `limits`; write `unit: hits, rate: 30/m`",
        ),
        (
            "{preset: openai, limits: [{name: a, by: api-key, budget: 20 per 1d}]}",
            "1:57: unknown key `budget` in `limits`; write `unit: money, rate: 20 per 1d`",
        ),
        (
            "{preset: vllm}",
            "1:17: `preset` is `vllm`: write openai, which reads the APIs of OpenAI, Anthropic and \
             Ollama, whatever server speaks them",
        ),
        ("{preset: opnai}", "`preset` is `opnai`: must be one of: openai"),
        (
            "{preset: openai, limits: [{name: a, by: api-key, unit: tokens, rate: 9/m, \
             action: hold}]}",
            "1:90: `action` must be `reject` or `delay` for a limit in tokens or money",
        ),
        (
            "{preset: openai, tokens: {per_second: auto}}",
            "1:46: `per_second` is `auto`: leave it out, then it is measured",
        ),
        (
            "{backend: 'http://127.0.0.1:8000/v1'}",
            "1:18: `backend` is `http://127.0.0.1:8000/v1`: only a host and a port are allowed \
             here, http://127.0.0.1:8000; the path comes from the client, which uses \
             http://PROXY/v1 as its base URL",
        ),
        ("{backend: 'http://me:secret@127.0.0.1:8000/v1'}", "only a host and a port are allowed"),
        (
            "{limits: [{name: a, by: api-key, unit: tokens, rate: 9/m}]}",
            "`a` counts tokens; set `cost: tokens` or `preset: openai`",
        ),
        ("{cost: token}", "must be wall, shared, header:NAME, cgroup:PATH or tokens"),
    ] {
        let faults = faults(&format!("proxy: {text}"));
        assert!(faults.contains(told), "{text}\n{faults}");
        assert!(!faults.contains("secret"), "{faults}");
    }
    for preset in ["anthropic", "Ollama", "litellm", "llama.cpp", "llama-cpp", "sglang"] {
        let faults = faults(&format!("proxy: {{preset: {preset}}}"));
        assert!(faults.contains("write openai, which reads the APIs"), "{faults}");
    }
}

#[test]
fn a_preset_can_be_a_flag() {
    let some = |text: &str| Some(text.to_owned());
    let flags = ProxyFlags { preset: some("openai"), ..ProxyFlags::default() };
    let flags = ProxyFlags { backend: "http://127.0.0.1:8000".to_owned(), ..flags };
    let proxy = from_flags(&flags, 2.0).expect("good").settings.proxy.expect("open");
    assert_eq!((proxy.cost.to_string(), &*proxy.limits[0].name), ("tokens".into(), "tenant"));
    let told = from_flags(&ProxyFlags { preset: some("vllm"), ..flags }, 2.0).expect_err("faulty");
    assert!(told.to_string().contains("`--preset` is `vllm`: write openai,"), "{told}");
}
