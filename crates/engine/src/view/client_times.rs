//! How long clients wait for their answers, where each client counts once.
//!
//! A mean or a percentile over requests is that of the clients with the most requests. An operator
//! asks how long the typical client waits, and which one does not wait as the others do. So the
//! figure of a client is the median of its last five requests, and the statistics are over clients.
//! They are for display: no decision uses them.

use evenkeel_core::key::KeyHash;
use evenkeel_core::top::ClientAnswer;
use evenkeel_core::units::Nanos;
use std::collections::HashMap;

/// How long the clients that were seen lately wait for their answers. A client counts by its key
/// under the first limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTimes {
    /// Those that were in credit at their last request.
    pub credit: TierTimes,
    /// Those that were in debt.
    pub debt: TierTimes,
}

/// How long some clients wait, the fastest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierTimes {
    times: Vec<(Nanos, KeyHash)>,
    /// The name of the slowest client.
    slowest: Option<String>,
}

impl ClientTimes {
    /// Joins the lists of several threads. `name` is called for the slowest clients.
    pub(crate) fn new(
        answers: impl Iterator<Item = ClientAnswer>,
        name: impl Fn(KeyHash) -> Option<String>,
    ) -> ClientTimes {
        let mut joined: HashMap<KeyHash, ClientAnswer> = HashMap::new();
        for answer in answers {
            // The thread with most of its recent requests knows best.
            let known = joined.entry(answer.hash).or_insert(answer);
            if answer.requests > known.requests {
                *known = answer;
            }
        }
        let (debt, credit) = joined.into_values().partition(|answer| answer.in_debt);
        ClientTimes { credit: TierTimes::new(credit, &name), debt: TierTimes::new(debt, &name) }
    }

    /// Joins the clients of another engine, none of which is the same as one of these.
    pub fn join(&mut self, other: ClientTimes) {
        self.credit.join(other.credit);
        self.debt.join(other.debt);
    }
}

impl TierTimes {
    fn new(answers: Vec<ClientAnswer>, name: impl Fn(KeyHash) -> Option<String>) -> TierTimes {
        let times = answers.into_iter().map(|answer| (answer.took, answer.hash));
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        let slowest = times.last().and_then(|(_, hash)| name(*hash));
        TierTimes { times, slowest }
    }

    fn join(&mut self, other: TierTimes) {
        if other.longest() > self.longest() {
            self.slowest = other.slowest;
        }
        self.times.extend(other.times);
        self.times.sort_unstable();
    }

    /// The number of clients.
    pub fn clients(&self) -> usize {
        self.times.len()
    }

    /// The time within which this part of the clients, from 0 to 1, get their answers; `None`
    /// without clients.
    pub fn within(&self, part: f64) -> Option<Nanos> {
        let rank = (part * self.times.len() as f64).ceil() as usize;
        self.times.get(rank.saturating_sub(1)).map(|(took, _)| *took)
    }

    /// The time of the slowest client.
    pub fn longest(&self) -> Option<Nanos> {
        self.times.last().map(|(took, _)| *took)
    }

    /// The name of the slowest client; `None` if it is unknown.
    pub fn slowest(&self) -> Option<&str> {
        self.slowest.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(client: u64, millis: u64, requests: f64) -> ClientAnswer {
        let (hash, took) = (KeyHash::from_bits(client), Nanos::from_millis(millis));
        ClientAnswer { hash, took, in_debt: false, requests }
    }

    fn named(hash: KeyHash) -> Option<String> {
        Some(format!("client {}", hash.bits()))
    }

    fn times(answers: impl IntoIterator<Item = ClientAnswer>) -> ClientTimes {
        ClientTimes::new(answers.into_iter(), named)
    }

    #[test]
    fn each_client_counts_once_however_many_requests_it_sends() {
        let people = (1..=20).map(|client| answer(client, 7, 1.0));
        let crawlers = (101..=108).map(|client| answer(client, 4_800, 500.0));
        let ClientTimes { credit, debt } = times(people.chain(crawlers));
        assert_eq!(credit.clients(), 28);
        assert_eq!(credit.within(0.5), Some(Nanos::from_millis(7)));
        assert_eq!(credit.within(0.95), Some(Nanos::from_millis(4_800)));
        assert_eq!(credit.slowest(), Some("client 108"));
        assert_eq!(debt, TierTimes::default());
    }

    #[test]
    fn clients_in_debt_are_counted_apart_however_many_there_are() {
        let people = (1..=20).map(|client| answer(client, 7, 1.0));
        let crawlers = (101..=150).map(|client| answer(client, 4_800, 500.0));
        let crawlers = crawlers.map(|answer| ClientAnswer { in_debt: true, ..answer });
        let ClientTimes { credit, debt } = times(people.chain(crawlers));
        assert_eq!(credit.within(1.0), Some(Nanos::from_millis(7)));
        assert_eq!((debt.clients(), debt.slowest()), (50, Some("client 150")));
    }

    #[test]
    fn a_client_of_several_threads_is_one_and_counts_as_most_of_its_requests() {
        let both = [answer(1, 900, 0.1), answer(1, 20, 5.0), answer(2, 30, 1.0)];
        let ClientTimes { credit, .. } = times(both);
        assert_eq!((credit.clients(), credit.within(0.5)), (2, Some(Nanos::from_millis(20))));
    }

    #[test]
    fn without_clients_nothing_is_said_and_doors_are_joined() {
        let mut all = ClientTimes::default();
        assert_eq!((all.credit.within(0.5), all.credit.longest()), (None, None));
        all.join(times([answer(1, 10, 1.0)]));
        all.join(times([answer(2, 5, 1.0)]));
        assert_eq!((all.credit.clients(), all.credit.slowest()), (2, Some("client 1")));
        assert_eq!(all.credit.within(0.5), Some(Nanos::from_millis(5)));
    }
}
