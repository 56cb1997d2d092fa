//! Questions about tags that somebody else answers, who counts for several instances.
//!
//! What a connection has sent is gone through twice: once to note what it asks, and again, when
//! that has been answered, to reply. Both times the same is asked in the same order. What is not
//! answered is decided here, as if nobody else had been asked. Who asks whom is up to the door.

use super::{Batch, Rules, TagLane, Told, told};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::Key;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::limiter::told::Word;
use evenkeel_core::units::{Cost, Nanos, Time};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// One question.
#[derive(Clone)]
pub struct Question {
    /// Its bucket here.
    pub key: Key,
    /// What it is about.
    pub tag: Box<[u8]>,
    /// How that is counted.
    pub algorithm: Algorithm,
    /// How many are asked for, all or none.
    pub cost: Cost,
    /// What somebody else says; `None`: nothing, so it is decided here.
    pub word: Option<Word>,
    /// Whoever was asked is to be told what is decided here.
    pub owes: bool,
    /// It was decided here, and served.
    pub served_here: bool,
    /// When its bucket was known to be full before that,
    pub known: Time,
    /// and when that was known.
    pub known_at: Time,
}

/// All that is asked at once.
pub struct Asked {
    rules: Arc<Rules>,
    /// In order.
    pub questions: VecDeque<Question>,
    /// Those that have been answered.
    pub answered: Vec<Question>,
}

impl Asked {
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Where it is counted here.
    #[must_use]
    pub fn home(&self) -> &Arc<Limiter> {
        &self.rules.limiter
    }
}

/// By whom a batch is decided.
pub(super) enum By {
    /// The limiter.
    Here,
    /// Nobody yet.
    Noted(VecDeque<Question>),
    /// Whoever was asked.
    Told(Asked),
}

impl PartialEq for By {
    fn eq(&self, other: &By) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl TagLane {
    /// Begins a batch that notes what is asked; what it replies means nothing, and nothing is
    /// counted.
    #[must_use]
    pub fn note(&self, client: Option<IpAddr>) -> Batch<'_> {
        self.batch_by(By::Noted(VecDeque::new()), client, self.tags.clock.now())
    }

    /// Begins the batch that replies to what was noted.
    #[must_use]
    pub fn tell(&self, client: Option<IpAddr>, asked: Asked) -> Batch<'_> {
        self.batch_by(By::Told(asked), client, self.tags.clock.now())
    }
}

impl Batch<'_> {
    /// What was noted, or replied to.
    #[must_use]
    pub fn asked(mut self) -> Asked {
        let rules = Arc::clone(&self.books.rules);
        match std::mem::replace(&mut self.by, By::Here) {
            By::Told(asked) => asked,
            By::Noted(questions) => Asked { rules, questions, answered: Vec::new() },
            By::Here => Asked { rules, questions: VecDeque::new(), answered: Vec::new() },
        }
    }

    /// Whether a single hit of a tag is served, as somebody else says.
    pub(super) fn served_elsewhere(&mut self, tag: Option<&[u8]>) -> bool {
        let found = tag.and_then(|tag| Some((tag, self.rules().find(tag)?)));
        let Some((tag, found)) = found else { return true };
        let algorithm = self.rules().algorithm(found).clone();
        self.told_elsewhere(&algorithm, found.key, tag, 1).served
    }

    /// How a tag stands, as somebody else says.
    pub(super) fn told_elsewhere(
        &mut self,
        algorithm: &Algorithm,
        key: Key,
        tag: &[u8],
        hits: u64,
    ) -> Told {
        match &mut self.by {
            By::Noted(questions) => {
                let (algorithm, cost) = (algorithm.clone(), Cost::hits(hits));
                let (word, owes, served_here) = (None, false, false);
                let (known, known_at) = (Time::ZERO, Time::ZERO);
                let tag = tag.into();
                questions.push_back(Question {
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
                told(&Algorithm::Debt(super::nothing()), 0, Nanos::ZERO, hits, self.now)
            }
            By::Told(asked) => {
                // The same is asked again, so there is always one.
                let Some(mut question) = asked.questions.pop_front() else {
                    return told(algorithm, 0, Nanos::ZERO, hits, self.now);
                };
                let (told, wait) = answer(&asked.rules.limiter, &mut question, hits, self.now);
                // Lists and figures are those of the limits that there are now.
                let same = Arc::ptr_eq(&asked.rules, &self.books.rules);
                asked.answered.push(question);
                if same {
                    self.count(key, tag, hits, wait);
                }
                match self.shadows(key) {
                    true => Told { served: true, retry: None, ..told },
                    false => told,
                }
            }
            By::Here => told(algorithm, 0, Nanos::ZERO, hits, self.now),
        }
    }
}

/// How the tag of a question stands, and for how long its hits have to wait.
fn answer(limiter: &Limiter, question: &mut Question, hits: u64, now: Time) -> (Told, Nanos) {
    let (key, algorithm) = (question.key, &question.algorithm);
    let Some(word) = question.word else {
        let wait = limiter.hit_by(algorithm, key, hits, now);
        question.served_here = wait == Nanos::ZERO;
        let state = now.plus(limiter.ahead(key, now)).0;
        return (told(algorithm, state, wait, hits, now), wait);
    };
    let clock = word.clock;
    let before = clock.plus(word.before).0;
    let wait = match word.charged {
        true => Nanos::ZERO,
        // Refused it was, whatever the last digit says.
        false => algorithm.wait(&[before], question.cost, clock).max(Nanos(1)),
    };
    (told(algorithm, clock.plus(word.after).0, wait, hits, clock), wait)
}
