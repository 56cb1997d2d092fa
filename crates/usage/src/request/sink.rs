//! Collects the relevant values of a request while its body is scanned.
//!
//! The prompt is every member that models read: messages, prompt, input, system and their like.
//! Declarations of tools count by their length as JSON, since models read them as such.

use super::prefixes::{PromptBeginning, PromptPlace};
use super::{MEDIA_TOKENS, MODEL_BYTES_MAX};
use crate::dialect::Dialect;
use crate::json::{Container, JsonSink, Key};
use crate::number::{BYTES_PER_TOKEN, TOKENS_MAX, tokens};
use crate::text::ShortText;

/// How many bytes of a string are searched for `data:image/png;base64,`.
const DATA_URL_BYTES: usize = 64;

pub(super) struct RequestSink {
    /// Whether the body is an object.
    pub(super) is_object: bool,
    pub(super) model: ShortText<MODEL_BYTES_MAX>,
    pub(super) stream: Option<bool>,
    pub(super) includes_usage: bool,
    pub(super) beginning: PromptBeginning,
    dialect: Dialect,
    /// The values of the members that bound the output in this API.
    output_bounds: [Option<u64>; 2],
    choices: [u64; 2],
    /// How many texts an array of prompts has.
    prompts: u64,
    /// The content of the prompt: bytes of texts, tokens, and images and their like.
    bytes: u64,
    tokens: u64,
    media: u64,
    /// The place where the current declarations of tools begin.
    tools: Option<u64>,
    /// The string that is being read: its kind, its length so far, and its beginning.
    kind: TextKind,
    place: Option<PromptPlace>,
    text_bytes: u64,
    head: ShortText<DATA_URL_BYTES>,
    /// The length of the data of the source that is being read, and whether it is plain text.
    source_bytes: Option<u64>,
    is_plain_source: bool,
}

/// The kind of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    /// Not a text of the prompt, but a name in it or something else.
    None,
    Model,
    Text,
    Media,
    /// The data of a source; the type of the source shows whether it is text.
    Source,
}

impl RequestSink {
    pub(super) fn new(dialect: Dialect) -> RequestSink {
        RequestSink {
            is_object: false,
            model: ShortText::new(),
            stream: None,
            includes_usage: false,
            beginning: PromptBeginning::default(),
            dialect,
            output_bounds: [None; 2],
            choices: [1; 2],
            prompts: 0,
            bytes: 0,
            tokens: 0,
            media: 0,
            tools: None,
            kind: TextKind::None,
            place: None,
            text_bytes: 0,
            head: ShortText::new(),
            source_bytes: None,
            is_plain_source: false,
        }
    }

    /// The tokens of the prompt, if `seen` bytes of the body were read and `unseen` were not.
    pub(super) fn prompt(&mut self, seen: u64, unseen: u64) -> u64 {
        if let Some(begin) = self.tools.take() {
            self.bytes += seen - begin;
        }
        // If a body is cut within an image, the rest is mostly that image.
        let is_cut_media =
            self.kind == TextKind::Media || self.kind == TextKind::Source && !self.is_plain_source;
        self.count_text();
        self.count_source();
        let unseen = if is_cut_media { 0 } else { unseen };
        let bytes = self.bytes.saturating_add(unseen).div_ceil(BYTES_PER_TOKEN);
        bytes + self.tokens + self.media * MEDIA_TOKENS
    }

    pub(super) fn output_max(&self) -> Option<u64> {
        let most = self.output_bounds.into_iter().flatten().max()?;
        let choices = self.choices[0].max(self.choices[1]).max(1);
        Some(most.saturating_mul(choices).saturating_mul(self.prompts.max(1)).min(TOKENS_MAX))
    }

    /// The value of the member at `path`, if that bounds the output in this API. Others are not
    /// believed: the backend ignores them.
    fn output_bound(&mut self, path: &[Key]) -> Option<&mut Option<u64>> {
        let place = match (self.dialect, path) {
            (Dialect::Responses, [Key::MaxOutputTokens])
            | (Dialect::Ollama, [Key::Options, Key::NumPredict]) => 0,
            (Dialect::Responses | Dialect::Ollama, _) => return None,
            (_, [Key::MaxTokens]) => 0,
            (Dialect::Chat, [Key::MaxCompletionTokens]) => 1,
            _ => return None,
        };
        Some(&mut self.output_bounds[place])
    }

    /// A member that may bound the output has this value. If it occurs several times, backends
    /// differ in which of them they take.
    fn note_output_bound(&mut self, path: &[Key], value: Option<u64>) {
        if let Some(bound) = self.output_bound(path) {
            *bound = value.map(|value| value.max(bound.unwrap_or(0)));
        }
    }

    /// The string that was being read is complete, or the body is cut.
    fn count_text(&mut self) {
        match std::mem::replace(&mut self.kind, TextKind::None) {
            TextKind::Text if is_data_url(self.head.kept()) => self.media += 1,
            TextKind::Text => self.bytes += self.text_bytes,
            TextKind::Media => self.media += 1,
            TextKind::Source => self.source_bytes = Some(self.text_bytes),
            TextKind::None | TextKind::Model => {}
        }
    }

    /// A source is complete, or the body is cut.
    fn count_source(&mut self) {
        match self.source_bytes.take() {
            Some(bytes) if self.is_plain_source => self.bytes += bytes,
            Some(_) => self.media += 1,
            None => {}
        }
    }

    fn kind(path: &[Key]) -> TextKind {
        match path {
            [Key::Model] => TextKind::Model,
            [root, ..] if !is_prompt(*root) => TextKind::None,
            [Key::Tools | Key::Functions, ..] => TextKind::None,
            [.., Key::Source, Key::Data] => TextKind::Source,
            [.., Key::InputAudio, Key::Data]
            | [.., Key::Source | Key::ImageUrl | Key::VideoUrl | Key::AudioUrl, Key::Url]
            | [.., Key::ImageUrl | Key::FileData]
            | [.., Key::Images, Key::Item] => TextKind::Media,
            [_, .., Key::Type | Key::Id | Key::Role | Key::ToolCallId | Key::MediaType] => {
                TextKind::None
            }
            _ => TextKind::Text,
        }
    }
}

/// The place of the strings of this member in the prompt; `None` if they are not hashed.
fn place(root: Key) -> Option<PromptPlace> {
    match root {
        Key::System | Key::Instructions | Key::Context => Some(PromptPlace::System),
        Key::Tools | Key::Functions | Key::Suffix => None,
        root => is_prompt(root).then_some(PromptPlace::Messages),
    }
}

/// Whether the model reads the content of this member.
fn is_prompt(root: Key) -> bool {
    matches!(
        root,
        Key::Messages
            | Key::Prompt
            | Key::Input
            | Key::System
            | Key::Instructions
            | Key::Suffix
            | Key::Context
            | Key::Images
            | Key::Tools
            | Key::Functions
            | Key::Query
            | Key::Documents
            | Key::Text1
            | Key::Text2
    )
}

fn is_data_url(begin: &[u8]) -> bool {
    begin.starts_with(b"data:") && begin.windows(8).any(|some| some == b";base64,")
}

impl JsonSink for RequestSink {
    fn open(&mut self, path: &[Key], kind: Container, at: u64) -> bool {
        match path {
            [] => {
                self.is_object = kind == Container::Object;
                return self.is_object;
            }
            [Key::StreamOptions | Key::Options] => return kind == Container::Object,
            // Clients move this member from message to message.
            [.., Key::CacheControl] => return false,
            [Key::Tools | Key::Functions] => self.tools = Some(at),
            [Key::Prompt, Key::Item] => self.prompts += 1,
            [.., Key::Source] => (self.source_bytes, self.is_plain_source) = (None, false),
            _ => {}
        }
        is_prompt(path[0])
    }

    fn close(&mut self, path: &[Key], at: u64) {
        match path {
            [Key::Tools | Key::Functions] => {
                self.bytes += self.tools.take().map_or(0, |begin| at - begin);
            }
            [.., Key::Source] => self.count_source(),
            _ => {}
        }
    }

    fn begin_text(&mut self, path: &[Key]) {
        self.kind = RequestSink::kind(path);
        self.place = path.first().and_then(|root| place(*root));
        self.text_bytes = 0;
        self.head.clear();
        if self.kind == TextKind::Model {
            self.model.clear();
        }
        if let Some(place) = self.place {
            self.beginning.begin(place);
        }
        self.prompts += u64::from(matches!(path, [Key::Prompt, Key::Item]));
        // Some backends read a number from a string.
        self.note_output_bound(path, None);
    }

    fn text(&mut self, _: &[Key], piece: &[u8]) {
        if self.kind == TextKind::Model {
            self.model.push(piece);
        }
        if let Some(place) = self.place {
            self.beginning.add(place, piece);
            self.head.push(piece);
        }
        self.text_bytes += piece.len() as u64;
    }

    fn end_text(&mut self, path: &[Key]) {
        if let [.., Key::Source, Key::Type] = path {
            self.is_plain_source = self.head.whole() == Some(b"text");
        }
        self.count_text();
    }

    fn scalar(&mut self, path: &[Key], token: &[u8], _: u64) {
        match path {
            [Key::Stream] => self.stream = Some(token == b"true"),
            [Key::StreamOptions, Key::IncludeUsage] => self.includes_usage = token == b"true",
            [Key::MaxTokens | Key::MaxOutputTokens | Key::MaxCompletionTokens] => {
                self.note_output_bound(path, tokens(token));
            }
            // Ollama: a negative number means no bound.
            [Key::Options, Key::NumPredict] => {
                self.note_output_bound(path, tokens(token).filter(|most| *most > 0));
            }
            [Key::N] => self.choices[0] = tokens(token).unwrap_or(1),
            [Key::BestOf] => self.choices[1] = tokens(token).unwrap_or(1),
            [root @ (Key::Prompt | Key::Input | Key::Context), Key::Item]
            | [root @ (Key::Prompt | Key::Input), Key::Item, Key::Item] => {
                self.tokens += 1;
                if let Some(place) = place(*root) {
                    self.beginning.begin(place);
                    self.beginning.add(place, token);
                }
            }
            _ => {}
        }
    }
}
