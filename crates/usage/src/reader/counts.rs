//! The numbers of a usage, whatever an API calls them, and what they mean.
//!
//! OpenAI's prompt contains what came from the cache; Anthropic's does not, and its stream states
//! the prompt at the beginning and the output at the end. Some servers count the tokens of
//! reasoning only in the total, so what the total has more than the prompt is output.

use crate::dialect::Dialect;
use crate::json::Key;
use crate::number::TOKENS_MAX;

/// The tokens that an answer used. Each at most [`TOKENS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt, those from the cache included. 0 if the answer does not state them.
    pub prompt: u64,
    /// Those of them that the backend had in its cache.
    pub cached: u64,
    /// Tokens of the output, reasoning included.
    pub output: u64,
}

/// The members of a usage that have been read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageFields {
    prompt: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    /// Anthropic: written to the cache.
    cache_created: Option<u64>,
}

impl UsageFields {
    /// The member `path` of a usage.
    pub(super) fn set(&mut self, path: &[Key], tokens: u64) {
        let field = match path {
            [Key::PromptTokens | Key::InputTokens | Key::PromptEvalCount] => &mut self.prompt,
            [Key::CompletionTokens | Key::OutputTokens | Key::EvalCount] => &mut self.output,
            [Key::TotalTokens] => &mut self.total,
            [Key::PromptTokensDetails | Key::InputTokensDetails, Key::CachedTokens]
            | [Key::PromptCacheHitTokens | Key::CachedTokens | Key::CacheReadInputTokens] => {
                &mut self.cached
            }
            [Key::CacheCreationInputTokens] => &mut self.cache_created,
            _ => return,
        };
        *field = (*field).max(Some(tokens));
    }

    /// Takes over what `newer` states. A zero there does not hide what was stated before: servers
    /// write it where they do not know yet, or no longer.
    pub(super) fn update(&mut self, newer: UsageFields) {
        let take = |old: &mut Option<u64>, new: Option<u64>| {
            *old = new.filter(|new| *new > 0).or(*old).or(new);
        };
        take(&mut self.prompt, newer.prompt);
        take(&mut self.output, newer.output);
        take(&mut self.total, newer.total);
        take(&mut self.cached, newer.cached);
        take(&mut self.cache_created, newer.cache_created);
    }

    /// The usage that the members state together; `None` if they state none.
    pub(super) fn usage(&self, dialect: Dialect) -> Option<TokenUsage> {
        self.prompt.or(self.output).or(self.total)?;
        let cached = self.cached.unwrap_or(0);
        if dialect.has_no_output() {
            let prompt = self.prompt.max(self.total).unwrap_or(0);
            return Some(bounded(prompt, cached, 0));
        }
        let (prompt, output) = if dialect == Dialect::Messages {
            let rest = cached + self.cache_created.unwrap_or(0);
            (self.prompt.unwrap_or(0) + rest, self.output.unwrap_or(0))
        } else {
            let output = self.output.unwrap_or(0);
            let total = self.total.unwrap_or(0);
            let prompt = self.prompt.unwrap_or(total.saturating_sub(output));
            (prompt, output.max(total.saturating_sub(prompt)))
        };
        Some(bounded(prompt, cached, output))
    }
}

/// The figures that llama.cpp adds about its work (`timings`), with or without a usage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimingFields {
    prompt: u64,
    cached: u64,
    output: u64,
}

impl TimingFields {
    pub(super) fn set(&mut self, key: Key, tokens: u64) {
        match key {
            Key::PromptN => self.prompt = tokens,
            Key::CacheN => self.cached = tokens,
            Key::PredictedN => self.output = tokens,
            _ => {}
        }
    }

    pub(super) fn usage(&self) -> TokenUsage {
        bounded(self.prompt + self.cached, self.cached, self.output)
    }
}

fn bounded(prompt: u64, cached: u64, output: u64) -> TokenUsage {
    let prompt = prompt.min(TOKENS_MAX);
    TokenUsage { prompt, cached: cached.min(prompt), output: output.min(TOKENS_MAX) }
}
