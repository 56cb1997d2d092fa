//! Collects the relevant values of an answer, or of one event of it, while it is scanned.
//!
//! Of an answer that is not a stream, only the usage is read. Of a stream the texts are read too:
//! their pieces are counted in case no usage follows.

use super::counts::{TimingFields, TokenUsage, UsageFields};
use crate::dialect::Dialect;
use crate::json::{Container, JsonSink, Key};
use crate::number::{BYTES_PER_TOKEN, TOKENS_MAX, tokens};
use crate::text::ShortText;

/// The longest type of an event that is read, in bytes.
const TYPE_BYTES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct AnswerSink {
    dialect: Dialect,
    /// Whether pieces of the output are counted.
    pub(super) counts: bool,
    /// The usage that is being read, and all that was read before.
    fields: UsageFields,
    known: UsageFields,
    stated: Option<TokenUsage>,
    choices: StatedChoices,
    timing: TimingFields,
    timed: Option<TokenUsage>,
    counted: u64,
    /// Tokens of the event that is being read.
    pieces: u64,
    /// The reasoning of one delta, under each of its two names: some servers send both.
    reasoning: [u64; 2],
    text_bytes: u64,
    event_type: ShortText<TYPE_BYTES_MAX>,
}

/// Adds up the usages of a stream that states one for each choice, as llama.cpp does.
///
/// The API has one usage for all choices, in one event with an empty array `choices`. If another
/// such event follows, and the stream has had more output than the newest one states, these usages
/// are of different choices: their outputs are added up. The prompt is the same in all of them.
#[derive(Debug, Default)]
struct StatedChoices {
    /// Whether the event that is being read has an empty array `choices`.
    is_empty: bool,
    /// The usage of this event.
    usage: Option<TokenUsage>,
    sum: Option<TokenUsage>,
}

impl StatedChoices {
    /// An event has ended; `counted` tokens of output so far. Returns the usage of all choices, if
    /// this event states one of several.
    fn end(&mut self, counted: u64) -> Option<TokenUsage> {
        let is_empty = std::mem::take(&mut self.is_empty);
        let newest = self.usage.take().filter(|_| is_empty)?;
        let earlier = self.sum.filter(|_| counted > newest.output);
        let sum = earlier.map(|sum| TokenUsage {
            prompt: sum.prompt.max(newest.prompt),
            cached: sum.cached.max(newest.cached),
            output: sum.output.saturating_add(newest.output).min(TOKENS_MAX),
        });
        self.sum = sum.or(Some(newest));
        sum
    }
}

impl AnswerSink {
    pub(super) fn new(dialect: Dialect) -> AnswerSink {
        AnswerSink {
            dialect,
            counts: false,
            fields: UsageFields::default(),
            known: UsageFields::default(),
            stated: None,
            choices: StatedChoices::default(),
            timing: TimingFields::default(),
            timed: None,
            counted: 0,
            pieces: 0,
            reasoning: [0; 2],
            text_bytes: 0,
            event_type: ShortText::new(),
        }
    }

    /// See [`super::UsageReader::stated`].
    pub(super) fn stated(&self) -> Option<TokenUsage> {
        match (self.stated, self.timed) {
            (Some(usage), Some(timed)) => {
                let cached = usage.cached.max(timed.cached).min(usage.prompt);
                Some(TokenUsage { cached, ..usage })
            }
            (stated, timed) => stated.or(timed),
        }
    }

    /// See [`super::UsageReader::counted`].
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// Handles the end of an event or an answer. Its counts are dropped unless it is complete.
    pub(super) fn end(&mut self, is_complete: bool) {
        // Audio is in base64, so its length does not show the number of its tokens.
        let is_sound = self.event_type.kept().ends_with(b"audio.delta");
        if is_complete && !is_sound {
            self.counted = self.counted.saturating_add(self.pieces);
        }
        if let Some(all) = self.choices.end(self.counted) {
            self.stated = Some(all);
        }
        self.pieces = 0;
        self.reasoning = [0; 2];
        self.fields = UsageFields::default();
        self.event_type.clear();
    }

    /// A usage has been read.
    fn commit(&mut self) {
        let fields = std::mem::take(&mut self.fields);
        if fields.usage(self.dialect).is_none() {
            return;
        }
        if self.dialect == Dialect::Messages {
            self.known.update(fields);
        } else {
            self.known = fields;
        }
        self.stated = self.known.usage(self.dialect);
        self.choices.usage = self.stated;
    }

    /// Whether a string is output of the model.
    fn is_output(&self, path: &[Key]) -> bool {
        match (self.dialect, path) {
            (Dialect::Chat, [Key::Choices, Key::Item, Key::Delta, rest @ ..]) => is_delta(rest),
            (Dialect::Completions, path) => *path == [Key::Choices, Key::Item, Key::Text],
            (Dialect::Responses | Dialect::Media, path) => *path == [Key::Delta],
            (Dialect::Messages, path) => {
                matches!(path, [Key::Delta, Key::Text | Key::Thinking | Key::PartialJson])
            }
            (Dialect::Ollama, path) => matches!(
                path,
                [Key::Message, Key::Content | Key::Thinking]
                    | [Key::Message, Key::ToolCalls, ..]
                    | [Key::Response | Key::Thinking]
            ),
            _ => false,
        }
    }
}

/// Whether a string of the `delta` of a choice is output.
fn is_delta(path: &[Key]) -> bool {
    matches!(
        path,
        [Key::Content | Key::ReasoningContent | Key::Reasoning | Key::Refusal]
            | [Key::Content, .., Key::Text]
            | [Key::ToolCalls, Key::Item, Key::Function, Key::Name | Key::Arguments]
            | [Key::FunctionCall, Key::Name | Key::Arguments]
            | [Key::Audio, Key::Transcript]
    )
}

/// Whether usages are found at this path.
fn is_usage(path: &[Key]) -> bool {
    matches!(path, [Key::Usage] | [Key::Response | Key::Message | Key::XGroq, Key::Usage])
}

impl JsonSink for AnswerSink {
    fn open(&mut self, path: &[Key], kind: Container, _: u64) -> bool {
        if is_usage(path) {
            self.fields = UsageFields::default();
            return kind == Container::Object;
        }
        match path {
            [] => kind == Container::Object,
            [Key::Choices] => {
                self.choices.is_empty = kind == Container::Array;
                self.counts
            }
            [Key::Choices, _] => {
                self.choices.is_empty = false;
                self.counts
            }
            [Key::Timings] => {
                self.timing = TimingFields::default();
                true
            }
            [Key::Response | Key::XGroq | Key::Message] => true,
            [before @ .., Key::PromptTokensDetails | Key::InputTokensDetails] => is_usage(before),
            [Key::Choices, Key::Item, Key::Delta, ..]
            | [Key::Delta]
            | [Key::Message, Key::ToolCalls, ..] => self.counts,
            _ => false,
        }
    }

    fn close(&mut self, path: &[Key], _: u64) {
        match path {
            [] if self.dialect == Dialect::Ollama || self.dialect == Dialect::OllamaEmbeddings => {
                self.commit();
            }
            [Key::Timings] => self.timed = Some(self.timing.usage()),
            [Key::Choices, Key::Item, Key::Delta] => {
                let [one, other] = std::mem::take(&mut self.reasoning);
                self.pieces = self.pieces.saturating_add(one.max(other));
            }
            path if is_usage(path) => self.commit(),
            _ => {}
        }
    }

    fn begin_text(&mut self, path: &[Key]) {
        self.text_bytes = 0;
        if let [Key::Type] = path {
            self.event_type.clear();
        }
    }

    fn text(&mut self, path: &[Key], piece: &[u8]) {
        self.text_bytes += piece.len() as u64;
        if let [Key::Type] = path {
            self.event_type.push(piece);
        }
    }

    fn end_text(&mut self, path: &[Key]) {
        if !self.counts || self.text_bytes == 0 || !self.is_output(path) {
            return;
        }
        let tokens = (self.text_bytes / BYTES_PER_TOKEN).max(1);
        let sum = match path {
            [Key::Choices, Key::Item, Key::Delta, Key::Reasoning] => &mut self.reasoning[0],
            [Key::Choices, Key::Item, Key::Delta, Key::ReasoningContent] => &mut self.reasoning[1],
            _ => &mut self.pieces,
        };
        *sum = sum.saturating_add(tokens);
    }

    fn scalar(&mut self, path: &[Key], token: &[u8], _: u64) {
        let Some(tokens) = tokens(token) else { return };
        match path {
            [Key::Timings, key] => self.timing.set(*key, tokens),
            [Key::Usage, rest @ ..]
            | [Key::Response | Key::Message | Key::XGroq, Key::Usage, rest @ ..] => {
                self.fields.set(rest, tokens);
            }
            [Key::PromptEvalCount | Key::EvalCount] => self.fields.set(path, tokens),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Dialect, TokenUsage, UsageReader};

    fn stated(events: &[&str]) -> Option<TokenUsage> {
        let mut reader = UsageReader::new(Dialect::Chat, b"text/event-stream", b"").expect("plain");
        for event in events {
            let line = event.replace('\n', "");
            reader.read(format!("data: {line}\n\n").as_bytes());
        }
        reader.stated()
    }

    const ONE: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    const OTHER: &str = r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#;
    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,
        "prompt_tokens_details":{"cached_tokens":4}}}"#;

    #[test]
    fn usages_of_single_choices_are_added_up() {
        let usage = TokenUsage { prompt: 9, cached: 4, output: 4 };
        assert_eq!(stated(&[ONE, OTHER, OTHER, ONE, USAGE, USAGE]), Some(usage));
        assert_eq!(stated(&[ONE, ONE, USAGE, OTHER, OTHER, USAGE]), Some(usage));
    }

    #[test]
    fn a_usage_that_comes_twice_counts_once() {
        let usage = TokenUsage { prompt: 9, cached: 4, output: 2 };
        assert_eq!(stated(&[ONE, ONE, USAGE, USAGE]), Some(usage));
        let running = r#"{"choices":[{"index":0,"delta":{"content":"a"}}],
            "usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
        assert_eq!(stated(&[running, ONE, USAGE]), Some(usage));
    }
}
