//! Questions about tags that a store answers for several instances.
//!
//! The input of a connection is parsed twice. The first pass notes the questions, and the second
//! one, after the store has answered, writes the replies. Both passes must ask the same questions
//! in the same order. A question without an answer is decided here, as without a store. The door
//! chooses the store.

use super::{TagAnswer, TagBatch, TagEngineRules, TagLane, ask_state};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::LimitKey;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::units::{Cost, Nanos, Time};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// One question about a tag, and its answer.
#[derive(Clone)]
pub struct TagQuestion {
    /// The tag's bucket in this process.
    pub key: LimitKey,
    /// The tag itself.
    pub tag: Box<[u8]>,
    /// The algorithm by which the tag is counted.
    pub algorithm: Algorithm,
    /// The number of hits asked for, all or none.
    pub cost: Cost,
    /// The answer of the store; `None` if there is none and this process decides.
    pub word: Option<StoreBucketState>,
    /// Whether the decision of this process must be reported to the store.
    pub owes: bool,
    /// Whether this process decided, and served the hits.
    pub served_here: bool,
    /// The time at which the bucket was known to be full, before these hits.
    pub known: Time,
    /// When `known` was determined.
    pub known_at: Time,
}

/// The questions of one pass over the input.
pub struct TagQuestions {
    rules: Arc<TagEngineRules>,
    /// The open questions, in the order of the input. The second pass takes them from the front.
    pub questions: VecDeque<TagQuestion>,
    /// The questions that were answered in the second pass.
    pub answered: Vec<TagQuestion>,
}

impl TagQuestions {
    pub(super) fn rules(&self) -> &TagEngineRules {
        &self.rules
    }

    /// The limiter that holds the buckets in this process.
    pub fn home(&self) -> &Arc<Limiter> {
        &self.rules.limiter
    }
}

/// How a batch is decided.
pub(super) enum DecidedBy {
    /// By the limiter of this process.
    Here,
    /// Not yet: the first pass notes the questions.
    Noted(VecDeque<TagQuestion>),
    /// By the store's answers: the second pass replies.
    Told(TagQuestions),
}

impl PartialEq for DecidedBy {
    fn eq(&self, other: &DecidedBy) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl TagLane {
    /// Begins a batch that only notes the questions. Its replies are placeholders, and it counts no
    /// questions.
    #[must_use]
    pub fn note(&self, client: Option<IpAddr>) -> TagBatch<'_> {
        self.batch_by(DecidedBy::Noted(VecDeque::new()), client, self.tags.shards.clock.now())
    }

    /// Begins the batch that replies to the questions that were noted.
    #[must_use]
    pub fn tell(&self, client: Option<IpAddr>, asked: TagQuestions) -> TagBatch<'_> {
        self.batch_by(DecidedBy::Told(asked), client, self.tags.shards.clock.now())
    }
}

impl TagBatch<'_> {
    /// Ends the batch and returns its questions.
    #[must_use]
    pub fn asked(mut self) -> TagQuestions {
        let rules = Arc::clone(&self.books.rules);
        match std::mem::replace(&mut self.by, DecidedBy::Here) {
            DecidedBy::Told(asked) => asked,
            DecidedBy::Noted(questions) => TagQuestions { rules, questions, answered: Vec::new() },
            DecidedBy::Here => {
                TagQuestions { rules, questions: VecDeque::new(), answered: Vec::new() }
            }
        }
    }

    /// Whether one hit of a tag is served, by the store's answer.
    pub(super) fn served_elsewhere(&mut self, tag: Option<&[u8]>) -> bool {
        let found = tag.and_then(|tag| Some((tag, self.rules().find(tag)?)));
        let Some((tag, found)) = found else { return true };
        let algorithm = self.rules().algorithm(found).clone();
        self.told_elsewhere(&algorithm, found.key, tag, 1).served
    }

    /// The state of a tag by the store's answer; a placeholder while questions are noted.
    pub(super) fn told_elsewhere(
        &mut self,
        algorithm: &Algorithm,
        key: LimitKey,
        tag: &[u8],
        hits: u64,
    ) -> TagAnswer {
        match &mut self.by {
            DecidedBy::Noted(questions) => {
                let (algorithm, cost) = (algorithm.clone(), Cost::hits(hits));
                let (word, owes, served_here) = (None, false, false);
                let (known, known_at) = (Time::ZERO, Time::ZERO);
                let tag = tag.into();
                questions.push_back(TagQuestion {
                    key,
                    tag,
                    algorithm,
                    cost,
                    word,
                    owes,
                    served_here,
                    known,
                    known_at,
                });
                ask_state(&Algorithm::Debt(super::nothing()), 0, Nanos::ZERO, hits, self.now)
            }
            DecidedBy::Told(asked) => {
                // The second pass asks the same questions, so there is always one.
                let Some(mut question) = asked.questions.pop_front() else {
                    return ask_state(algorithm, 0, Nanos::ZERO, hits, self.now);
                };
                let (told, wait) = answer(&asked.rules.limiter, &mut question, hits, self.now);
                // The lists and counters belong to the current limits, so questions from before a
                // reload are not counted.
                let same = Arc::ptr_eq(&asked.rules, &self.books.rules);
                asked.answered.push(question);
                if same {
                    self.count(key, tag, hits, wait);
                }
                match self.shadows(key) {
                    true => TagAnswer { served: true, retry: None, ..told },
                    false => told,
                }
            }
            DecidedBy::Here => ask_state(algorithm, 0, Nanos::ZERO, hits, self.now),
        }
    }
}

/// The state of the tag of a question, and how long its hits have to wait.
fn answer(
    limiter: &Limiter,
    question: &mut TagQuestion,
    hits: u64,
    now: Time,
) -> (TagAnswer, Nanos) {
    let (key, algorithm) = (question.key, &question.algorithm);
    let Some(word) = question.word else {
        let wait = limiter.hit_by(algorithm, key, hits, now);
        question.served_here = wait == Nanos::ZERO;
        let state = now.plus(limiter.ahead(key, now)).0;
        return (ask_state(algorithm, state, wait, hits, now), wait);
    };
    let clock = word.clock;
    let before = clock.plus(word.before).0;
    let wait = match word.charged {
        true => Nanos::ZERO,
        // The store has refused, so the wait is above zero even if rounding says otherwise.
        false => algorithm.wait(&[before], question.cost, clock).max(Nanos(1)),
    };
    (ask_state(algorithm, clock.plus(word.after).0, wait, hits, clock), wait)
}
