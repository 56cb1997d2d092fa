//! The command line of the engine.
//!
//! All times are those of the simulated engine; `--scale` makes it run faster than real time.

/// The capacity and the speed of the engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The port on 127.0.0.1.
    pub port: u16,
    /// The largest number of sequences in the batch, 1 or more.
    pub max_num_seqs: usize,
    /// The largest number of tokens that one step computes, 1 or more.
    pub max_batched_tokens: u64,
    /// The number of tokens that the KV cache holds, so also the most of a prompt and its output
    /// together.
    pub kv_tokens: u64,
    /// The number of prompt tokens that the prefix cache remembers; 0: no prefix cache.
    pub cache_tokens: u64,
    /// The time of a step, in microseconds.
    pub step_us: f64,
    /// The additional time of a step for each sequence that gets a token, in microseconds.
    pub sequence_us: f64,
    /// The additional time of a step for each token of a prompt, in microseconds.
    pub prefill_us: f64,
    /// How many times faster than real time the engine runs.
    pub scale: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: 0,
            max_num_seqs: 64,
            max_batched_tokens: 2_048,
            kv_tokens: 65_536,
            cache_tokens: 65_536,
            step_us: 10_000.0,
            sequence_us: 100.0,
            prefill_us: 20.0,
            scale: 1.0,
        }
    }
}

/// The names of the options, for the message about a wrong one.
pub const USAGE: &str = "usage: model-engine --port N [--max-num-seqs 64] \
    [--max-batched-tokens 2048] [--kv-tokens 65536] [--cache-tokens 65536] [--step-us 10000] \
    [--sequence-us 100] [--prefill-us 20] [--scale 1]";

impl Options {
    /// Reads the command line. Returns `None` if an option is unknown or a value is not a number.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Option<Options> {
        let mut options = Options::default();
        while let Some(name) = words.next() {
            options.set(&name, &words.next()?)?;
        }
        let is_possible = options.port > 0
            && options.max_num_seqs > 0
            && options.max_batched_tokens > 0
            && options.scale > 0.0;
        is_possible.then_some(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "--port" => self.port = value.parse().ok()?,
            "--max-num-seqs" => self.max_num_seqs = value.parse().ok()?,
            "--max-batched-tokens" => self.max_batched_tokens = value.parse().ok()?,
            "--kv-tokens" => self.kv_tokens = value.parse().ok()?,
            "--cache-tokens" => self.cache_tokens = value.parse().ok()?,
            "--step-us" => self.step_us = value.parse().ok()?,
            "--sequence-us" => self.sequence_us = value.parse().ok()?,
            "--prefill-us" => self.prefill_us = value.parse().ok()?,
            "--scale" => self.scale = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}
