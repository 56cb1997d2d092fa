//! Which shares would do for this site: small enough that robots run out of them, large enough that
//! people never do.
//!
//! For each share it is known who would have been in debt under it at any time. What is suggested
//! is one step above the smallest under which no more than one in a thousand of those who look like
//! people were: next month somebody will read more. A network has room for several of its clients.

use crate::cli::replay::people::Kind;
use crate::cli::replay::tally::needs::{Needs, SHARES};
use crate::cli::replay::tally::{SIZES, Tally};
use evenkeel_core::key::network;
use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;

/// Of so many people one may run short.
const PEOPLE_PER_SHORT: u64 = 1_000;
/// What the three limits are called, and what they count by.
const LIMITS: [(&str, &str); 3] = [("ip", "ip/32"), ("net24", "ip/24"), ("net16", "ip/16")];
/// Fewer people say nothing of others.
const PEOPLE_MIN: u64 = 20;

/// Shares for a site.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Suggestion {
    /// How each limit would have met people and others under each share.
    pub tried: Vec<Tried>,
    /// What goes into a configuration; empty where too few people came to say anything.
    pub yaml: String,
}

/// One limit under one share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// What is counted by.
    pub by: &'static str,
    /// The share.
    pub share: f64,
    /// Clients or networks of people.
    pub people: u64,
    /// How many of them would have been in debt at some time.
    pub people_short: u64,
    /// All others.
    pub others: u64,
    /// How many of them would have been in debt.
    pub others_short: u64,
    /// Whether this is the suggestion.
    pub suggested: bool,
}

impl Suggestion {
    /// For what was counted.
    #[must_use]
    pub fn of(tally: &Tally, kinds: &HashMap<IpAddr, Kind>) -> Suggestion {
        let clients = tally.visitors.iter();
        let clients: Vec<(bool, &Needs)> =
            clients.map(|(at, one)| (kinds.get(at) == Some(&Kind::People), &one.needs)).collect();
        let mut all = vec![clients];
        for (networks, size) in tally.networks.iter().zip(SIZES) {
            let people = of_people(tally, kinds, size);
            let is_people =
                |at: &IpAddr| people.get(at).is_some_and(|(theirs, all)| theirs * 2 > *all);
            let each = networks.iter().map(|(at, one)| (is_people(at), &one.needs));
            all.push(each.collect());
        }
        let (mut tried, mut yaml) = (Vec::new(), String::new());
        let mut least = 0;
        for ((name, by), each) in LIMITS.into_iter().zip(&all) {
            let mut rows: Vec<Tried> = (0..SHARES.len()).map(|at| row(by, each, at)).collect();
            let enough =
                rows.iter().position(|row| row.people_short <= row.people / PEOPLE_PER_SHORT);
            let place = enough.map_or(SHARES.len() - 1, |place| place + 1).max(least);
            let place = place.min(SHARES.len() - 1);
            least = (place + 1).min(SHARES.len() - 1);
            if rows[place].people >= PEOPLE_MIN || !yaml.is_empty() {
                rows[place].suggested = true;
                let share = SHARES[place] * 100.0;
                yaml += &format!("    - {{name: {name}, by: {by}, share: {share}%, burst: 30s}}\n");
            }
            tried.extend(rows);
        }
        if !yaml.is_empty() {
            yaml = format!("proxy:\n  limits:\n{yaml}");
        }
        Suggestion { tried, yaml }
    }
}

/// What people needed of each network's CPU time, and all of it.
fn of_people(
    tally: &Tally,
    kinds: &HashMap<IpAddr, Kind>,
    (v4, v6): (u8, u8),
) -> HashMap<IpAddr, (u64, u64)> {
    let mut people: HashMap<IpAddr, (u64, u64)> = HashMap::new();
    for (at, visitor) in tally.visitors.iter() {
        let (theirs, all) = people.entry(network(*at, v4, v6)).or_default();
        *all += visitor.needed.0;
        if kinds.get(at) == Some(&Kind::People) {
            *theirs += visitor.needed.0;
        }
    }
    people
}

fn row(by: &'static str, each: &[(bool, &Needs)], place: usize) -> Tried {
    let count = |wanted: bool, short: bool| {
        let those = each
            .iter()
            .filter(|(people, needs)| *people == wanted && (!short || !needs.suffices(place)));
        those.count() as u64
    };
    Tried {
        by,
        share: SHARES[place],
        people: count(true, false),
        people_short: count(true, true),
        others: count(false, false),
        others_short: count(false, true),
        suggested: false,
    }
}
