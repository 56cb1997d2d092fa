//! Suggests shares for this site: so small that robots use them up, so large that people never do.
//!
//! The tally knows for each share which clients would ever have been in debt with it. The
//! suggestion is one step above the smallest share with which at most one in a thousand of the
//! clients that look like people would have been in debt; the step is a reserve for people who read
//! more next month. The share of a network is always larger than that of a single client, up to the
//! largest share.

use crate::replay::people::ClientKind;
use crate::replay::tally::share_needs::{SHARES_TRIED, ShareNeeds};
use crate::replay::tally::{NETWORK_SIZES, ReplayTally};
use evenkeel_core::key::network;
use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;

/// One in this number of people may be in debt under a suggested share.
const PEOPLE_PER_SHORT: u64 = 1_000;
/// The names of the three limits, and the keys by which they count.
const LIMITS: [(&str, &str); 3] = [("ip", "ip/32"), ("net24", "ip/24"), ("net16", "ip/16")];
/// The minimum number of people for a suggestion; fewer are not representative.
const PEOPLE_MIN: u64 = 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ShareSuggestion {
    /// The effect of each limit on people and on others, for each share.
    pub tried: Vec<TriedShare>,
    /// The text for a configuration; empty if there were too few people.
    pub yaml: String,
}

/// The effect of one limit with one share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedShare {
    /// The key by which the limit counts.
    pub by: &'static str,
    /// The share of all CPUs, from 0 to 1.
    pub share: f64,
    /// The number of clients that look like people, or of networks of mostly such clients.
    pub people: u64,
    /// The number of them that would have been in debt at some time.
    pub people_short: u64,
    /// The number of all other clients or networks.
    pub others: u64,
    /// The number of these others that would have been in debt at some time.
    pub others_short: u64,
    pub suggested: bool,
}

impl ShareSuggestion {
    /// Derives the suggestion from the counts of a replay.
    pub fn of(tally: &ReplayTally, kinds: &HashMap<IpAddr, ClientKind>) -> ShareSuggestion {
        let clients = tally.visitors.iter();
        let clients: Vec<(bool, &ShareNeeds)> = clients
            .map(|(at, one)| (kinds.get(at) == Some(&ClientKind::People), &one.needs))
            .collect();
        let mut all = vec![clients];
        for (networks, size) in tally.networks.iter().zip(NETWORK_SIZES) {
            let people = of_people(tally, kinds, size);
            let is_people =
                |at: &IpAddr| people.get(at).is_some_and(|(theirs, all)| theirs * 2 > *all);
            let each = networks.iter().map(|(at, one)| (is_people(at), &one.needs));
            all.push(each.collect());
        }
        let (mut tried, mut yaml) = (Vec::new(), String::new());
        let mut least = 0;
        for ((name, by), each) in LIMITS.into_iter().zip(&all) {
            let mut rows: Vec<TriedShare> =
                (0..SHARES_TRIED.len()).map(|at| row(by, each, at)).collect();
            let enough =
                rows.iter().position(|row| row.people_short <= row.people / PEOPLE_PER_SHORT);
            let place = enough.map_or(SHARES_TRIED.len() - 1, |place| place + 1).max(least);
            let place = place.min(SHARES_TRIED.len() - 1);
            least = (place + 1).min(SHARES_TRIED.len() - 1);
            if rows[place].people >= PEOPLE_MIN || !yaml.is_empty() {
                rows[place].suggested = true;
                let share = SHARES_TRIED[place] * 100.0;
                yaml += &format!("    - {{name: {name}, by: {by}, share: {share}%, burst: 30s}}\n");
            }
            tried.extend(rows);
        }
        if !yaml.is_empty() {
            yaml = format!("proxy:\n  limits:\n{yaml}");
        }
        ShareSuggestion { tried, yaml }
    }
}

/// For each network: the CPU time that people needed, and that all clients needed, in nanoseconds.
fn of_people(
    tally: &ReplayTally,
    kinds: &HashMap<IpAddr, ClientKind>,
    (v4, v6): (u8, u8),
) -> HashMap<IpAddr, (u64, u64)> {
    let mut people: HashMap<IpAddr, (u64, u64)> = HashMap::new();
    for (at, visitor) in tally.visitors.iter() {
        let (theirs, all) = people.entry(network(*at, v4, v6)).or_default();
        *all += visitor.needed.0;
        if kinds.get(at) == Some(&ClientKind::People) {
            *theirs += visitor.needed.0;
        }
    }
    people
}

fn row(by: &'static str, each: &[(bool, &ShareNeeds)], place: usize) -> TriedShare {
    let count = |wanted: bool, short: bool| {
        let those = each
            .iter()
            .filter(|(people, needs)| *people == wanted && (!short || !needs.suffices(place)));
        those.count() as u64
    };
    TriedShare {
        by,
        share: SHARES_TRIED[place],
        people: count(true, false),
        people_short: count(true, true),
        others: count(false, false),
        others_short: count(false, true),
        suggested: false,
    }
}
