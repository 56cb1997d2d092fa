//! The batch: which sequences compute how many tokens in the next step.
//!
//! As in vLLM, a sequence has a context: its prompt and the tokens generated so far. Each step
//! computes more of the context: a chunk of the prompt, or the last token. When the whole context
//! is computed, the sequence generates a token. Running sequences come first, in order of arrival;
//! waiting ones are first in, first out. If the KV cache is full, the newest running sequence is
//! preempted and computes everything again later.

use crate::options::Options;
use crate::prefix::{BLOCK_TOKENS, PrefixCache};
use crate::tally::Tally;
use std::collections::VecDeque;
use tokio::sync::mpsc::UnboundedSender;

/// The progress of a request, as it is sent to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A token was generated.
    Token,
    /// The last token was generated. `cached`: tokens of the prompt that were in the prefix cache.
    End { cached: u64 },
}

/// A request in the engine.
pub struct Sequence {
    /// The number of its tenant in the tally.
    pub tenant: usize,
    /// The tokens of its prompt, at least one.
    pub prompt: u64,
    /// The tokens that it will make, at least one.
    pub output: u64,
    /// The blocks of its prompt.
    pub hashes: Vec<u64>,
    /// Receives its tokens. If it is closed, the client has disconnected.
    pub events: UnboundedSender<Event>,
    /// Tokens of its context that are computed.
    computed: u64,
    /// Tokens of its context that have been charged to its tenant.
    charged: u64,
    cached: u64,
    made: u64,
    is_preempted: bool,
}

impl Sequence {
    pub fn new(
        tenant: usize,
        prompt: u64,
        output: u64,
        hashes: Vec<u64>,
        events: UnboundedSender<Event>,
    ) -> Sequence {
        Sequence {
            tenant,
            prompt,
            output,
            hashes,
            events,
            computed: 0,
            charged: 0,
            cached: 0,
            made: 0,
            is_preempted: false,
        }
    }

    fn context(&self) -> u64 {
        self.prompt + self.made
    }
}

/// The part of one sequence in a step.
struct Part {
    tokens: u64,
    is_decode: bool,
}

/// The running and waiting sequences, and the caches.
pub struct Batch {
    options: Options,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    /// The parts of the first running sequences in the step that is being computed.
    parts: Vec<Part>,
    prefixes: PrefixCache,
    pub tally: Tally,
}

impl Batch {
    pub fn new(options: Options) -> Batch {
        Batch {
            prefixes: PrefixCache::new(options.cache_tokens),
            options,
            running: Vec::new(),
            waiting: VecDeque::new(),
            parts: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub fn push(&mut self, sequence: Sequence) {
        self.tally.tenants[sequence.tenant].requests += 1;
        self.waiting.push_back(sequence);
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tokens in the KV cache.
    pub fn kv_tokens(&self) -> u64 {
        self.running.iter().map(|one| one.computed).sum()
    }

    /// The part of the KV cache that is in use, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        (self.used_blocks() * BLOCK_TOKENS) as f64 / self.options.kv_tokens as f64
    }

    /// Plans a step and returns its time in seconds of the engine; `None` if no work is left.
    pub fn plan(&mut self) -> Option<f64> {
        self.remove_aborted();
        self.parts.clear();
        let mut budget = self.options.max_batched_tokens;
        let blocks = self.options.kv_tokens / BLOCK_TOKENS;
        let mut free = blocks.saturating_sub(self.used_blocks());
        let is_full = self.plan_running(&mut budget, &mut free);
        if !is_full {
            self.admit(&mut budget, &mut free);
        }
        if self.parts.is_empty() {
            return None;
        }
        let decodes = self.parts.iter().filter(|part| part.is_decode).count();
        let prefilled: u64 =
            self.parts.iter().filter(|part| !part.is_decode).map(|part| part.tokens).sum();
        let us = self.options.step_us
            + self.options.sequence_us * decodes as f64
            + self.options.prefill_us * prefilled as f64;
        Some(us * 1e-6)
    }

    /// Ends the step that was planned.
    pub fn finish_step(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        for (index, part) in parts.iter().enumerate() {
            self.compute(index, part.tokens);
        }
        self.tally.kv_peak = self.tally.kv_peak.max(self.kv_tokens());
        self.running.retain(|one| one.made < one.output);
        self.parts = parts;
    }

    fn used_blocks(&self) -> u64 {
        self.running.iter().map(|one| blocks(one.computed)).sum()
    }

    /// Plans the sequences that run already. Returns whether the KV cache is full.
    fn plan_running(&mut self, budget: &mut u64, free: &mut u64) -> bool {
        let mut is_full = false;
        let mut index = 0;
        while index < self.running.len() && *budget > 0 {
            let one = &self.running[index];
            let left = one.context() - one.computed;
            let tokens = left.min(*budget);
            let more = blocks(one.computed + tokens) - blocks(one.computed);
            while more > *free && self.running.len() > index {
                is_full = true;
                *free += self.preempt_newest();
            }
            if index < self.running.len() {
                *free -= more;
                *budget -= tokens;
                let is_decode = self.running[index].made > 0 && left == 1;
                self.parts.push(Part { tokens, is_decode });
                index += 1;
            }
        }
        is_full
    }

    /// Takes the newest running sequence out of the batch. Returns the number of its blocks.
    fn preempt_newest(&mut self) -> u64 {
        let Some(mut newest) = self.running.pop() else { return 0 };
        let freed = blocks(newest.computed);
        newest.computed = 0;
        newest.is_preempted = true;
        self.tally.preemptions += 1;
        self.waiting.push_front(newest);
        freed
    }

    /// Takes waiting sequences into the batch while there is room.
    fn admit(&mut self, budget: &mut u64, free: &mut u64) {
        // Sequences beyond the budget have no part, and parts belong to the first ones.
        let all_planned = self.parts.len() == self.running.len();
        while all_planned && *budget > 0 && self.running.len() < self.options.max_num_seqs {
            let Some(next) = self.waiting.front() else { return };
            let known = self.prefixes.known(&next.hashes).min(next.prompt - 1);
            let tokens = (next.context() - known).min(*budget);
            let needed = blocks(known + tokens);
            if needed > *free {
                return;
            }
            let Some(mut next) = self.waiting.pop_front() else { return };
            next.computed = known;
            if !next.is_preempted {
                next.cached = known;
                next.charged = known;
                self.tally.tenants[next.tenant].cached += known;
            }
            *free -= needed;
            *budget -= tokens;
            self.parts.push(Part { tokens, is_decode: false });
            self.running.push(next);
        }
    }

    fn compute(&mut self, index: usize, tokens: u64) {
        let one = &mut self.running[index];
        let tenant = &mut self.tally.tenants[one.tenant];
        one.computed += tokens;
        let new = one.computed.min(one.prompt).saturating_sub(one.charged);
        tenant.prompt += new;
        one.charged += new;
        if one.computed < one.context() {
            return;
        }
        if one.made == 0 {
            self.prefixes.insert(&one.hashes);
        }
        one.made += 1;
        tenant.output += 1;
        let _ = one.events.send(Event::Token);
        if one.made == one.output {
            tenant.finished += 1;
            let _ = one.events.send(Event::End { cached: one.cached });
        }
    }

    /// Removes the requests of clients that have disconnected.
    fn remove_aborted(&mut self) {
        let tally = &mut self.tally;
        let mut is_wanted = |one: &Sequence| {
            let is_gone = one.events.is_closed();
            tally.tenants[one.tenant].aborted += u64::from(is_gone);
            !is_gone
        };
        self.running.retain(&mut is_wanted);
        self.waiting.retain(&mut is_wanted);
    }
}

fn blocks(tokens: u64) -> u64 {
    tokens.div_ceil(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests;
