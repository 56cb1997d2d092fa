//! The names of members that matter in requests and answers, as numbers.
//!
//! The path to a value is then a short slice that patterns can match: `[Choices, Item, Delta,
//! Content]`. All other names are the same to their readers: [`Key::Other`].

macro_rules! keys {
    ($($key:ident $name:literal,)*) => {
        /// One step on the path to a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Key {
            /// A member with any other name.
            Other,
            /// An element of an array.
            Item,
            $(#[doc = concat!("The member `", $name, "`.")] $key,)*
        }

        const NAMES: &[(&[u8], Key)] = &[$(($name.as_bytes(), Key::$key),)*];
    };
}

keys! {
    Arguments "arguments",
    Audio "audio",
    AudioUrl "audio_url",
    BestOf "best_of",
    CacheControl "cache_control",
    CacheCreationInputTokens "cache_creation_input_tokens",
    CacheN "cache_n",
    CacheReadInputTokens "cache_read_input_tokens",
    CachedTokens "cached_tokens",
    Choices "choices",
    CompletionTokens "completion_tokens",
    Content "content",
    Context "context",
    Data "data",
    Delta "delta",
    Documents "documents",
    EvalCount "eval_count",
    FileData "file_data",
    Function "function",
    FunctionCall "function_call",
    Functions "functions",
    Id "id",
    ImageUrl "image_url",
    Images "images",
    IncludeUsage "include_usage",
    Input "input",
    InputAudio "input_audio",
    InputTokens "input_tokens",
    InputTokensDetails "input_tokens_details",
    Instructions "instructions",
    MaxCompletionTokens "max_completion_tokens",
    MaxOutputTokens "max_output_tokens",
    MaxTokens "max_tokens",
    MediaType "media_type",
    Message "message",
    Messages "messages",
    Model "model",
    N "n",
    Name "name",
    NumPredict "num_predict",
    Options "options",
    OutputTokens "output_tokens",
    PartialJson "partial_json",
    PredictedN "predicted_n",
    Prompt "prompt",
    PromptCacheHitTokens "prompt_cache_hit_tokens",
    PromptEvalCount "prompt_eval_count",
    PromptN "prompt_n",
    PromptTokens "prompt_tokens",
    PromptTokensDetails "prompt_tokens_details",
    Query "query",
    Reasoning "reasoning",
    ReasoningContent "reasoning_content",
    Refusal "refusal",
    Response "response",
    Role "role",
    Source "source",
    Stream "stream",
    StreamOptions "stream_options",
    Suffix "suffix",
    System "system",
    Text "text",
    Text1 "text_1",
    Text2 "text_2",
    Thinking "thinking",
    Timings "timings",
    ToolCallId "tool_call_id",
    ToolCalls "tool_calls",
    Tools "tools",
    TotalTokens "total_tokens",
    Transcript "transcript",
    Type "type",
    Url "url",
    Usage "usage",
    VideoUrl "video_url",
    XGroq "x_groq",
}

/// A hash table with room, made by the compiler: the index of a name plus one, or 0.
const SLOTS: [u8; 256] = {
    let mut slots = [0; 256];
    let mut index = 0;
    while index < NAMES.len() {
        let mut slot = slot(NAMES[index].0);
        while slots[slot] != 0 {
            slot = (slot + 1) % 256;
        }
        index += 1;
        slots[slot] = index as u8;
    }
    slots
};

const fn slot(name: &[u8]) -> usize {
    match name {
        [first, .., last] => (*first as usize * 5 + *last as usize * 11 + name.len() * 29) % 256,
        [one] => *one as usize,
        [] => 0,
    }
}

impl Key {
    /// The key of a member's name, without escapes.
    pub(crate) fn of(name: &[u8]) -> Key {
        let mut slot = slot(name);
        while SLOTS[slot] != 0 {
            let (known, key) = NAMES[SLOTS[slot] as usize - 1];
            if known == name {
                return key;
            }
            slot = (slot + 1) % 256;
        }
        Key::Other
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, NAMES};

    #[test]
    fn every_name_is_found_and_no_other() {
        for (name, key) in NAMES {
            assert_eq!(Key::of(name), *key);
            assert_eq!(Key::of(&name[1..]), Key::Other);
            assert_eq!(Key::of(&[name, &b"x"[..]].concat()), Key::Other);
        }
        assert_eq!(Key::of(b""), Key::Other);
    }
}
