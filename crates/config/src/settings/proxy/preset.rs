//! The key `proxy.preset`: defaults for a kind of backend.
//!
//! What follows from it stands where it is read: the cost in `settings::proxy`, the limits in
//! `settings::limits`.

use crate::keys::{ConfigKey, section};
use crate::reader::SectionReader;
use crate::values::Read;

/// Defaults for a kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyPreset {
    /// An API of language models.
    OpenAi,
}

section! {
    /// Defaults for a kind of backend. `openai`: an API of language models, as of vLLM, SGLang,
    /// llama.cpp, Ollama or a provider. It sets [`cost: tokens`](models.md), and distinguishes
    /// clients by API key (`by: api-key`), or by address if they send none.
    PRESET: ConfigKey<ProxyPreset> =
        ConfigKey::words("preset", &[("openai", ProxyPreset::OpenAi)]).default_note("none")
            .example("openai");
}

/// Servers and APIs that people take for presets, and that `openai` serves.
const MODEL_SERVERS: [&str; 14] = [
    "anthropic",
    "claude",
    "vllm",
    "sglang",
    "ollama",
    "litellm",
    "llama.cpp",
    "llama-cpp",
    "llamacpp",
    "llama-server",
    "tgi",
    "azure",
    "lmstudio",
    "localai",
];

/// Reads the key of the section `proxy`.
pub(super) fn read(proxy: &mut SectionReader<'_, '_>) -> Option<ProxyPreset> {
    proxy.key_with("preset", preset)
}

/// Reads a preset. The names of model servers and of other APIs lead to the one that serves them.
fn preset(text: &str) -> Read<ProxyPreset> {
    let is_served = MODEL_SERVERS.iter().any(|name| name.eq_ignore_ascii_case(text));
    PRESET.parse(text).map_err(|what| match is_served {
        true => "write openai, which reads the APIs of OpenAI, Anthropic and Ollama, whatever \
                 server speaks them"
            .to_owned(),
        false => what,
    })
}
