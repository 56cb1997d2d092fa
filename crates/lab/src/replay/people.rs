//! Classifies clients by their behaviour in a log: people, robots or unclear, with the reasons.
//!
//! The classification decides nothing: the limits do not use it. The report shows it next to the
//! results, so that the operator sees which clients the limits would have affected. Each sign is a
//! point for or against; two points make a classification, fewer do not. A sign that the log cannot
//! show does not count, for example if it has no referrers or the site has no images.

use super::tally::ReplayTally;
use super::tally::visitor::ClientTally;
use evenkeel_core::key::network;
use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;

/// What a client looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientKind {
    /// A person with a browser.
    People,
    /// There are too few signs.
    Unclear,
    /// A program, such as a crawler.
    Robot,
}

impl ClientKind {
    /// The name in text reports.
    pub fn name(self) -> &'static str {
        match self {
            ClientKind::People => "people",
            ClientKind::Unclear => "unclear",
            ClientKind::Robot => "robot",
        }
    }
}

/// The classification of a client, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientJudgement {
    /// What the client looks like.
    pub kind: ClientKind,
    /// The signs for the classification.
    pub why: Vec<&'static str>,
}

/// The signs that a log can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BehaviourSigns {
    /// The log has requests for files that belong to pages.
    pub files: bool,
    pub referrers: bool,
}

/// Parts of the names with which programs identify themselves.
const PROGRAMS: [&str; 24] = [
    "bot",
    "crawl",
    "spider",
    "slurp",
    "curl/",
    "wget/",
    "python",
    "java/",
    "go-http",
    "okhttp",
    "scrapy",
    "libwww",
    "httpclient",
    "http-client",
    "headless",
    "phantom",
    "fetch",
    "scan",
    "monitor",
    "archiver",
    "feed",
    "perl",
    "ruby",
    "preview",
];
/// The minimum number of pages for signs of behaviour.
const PAGES_MIN: u32 = 5;

impl BehaviourSigns {
    /// The signs that this log can show: those that more than one in fifty requests has.
    pub fn of(tally: &ReplayTally) -> BehaviourSigns {
        let often = |count: u64| count > tally.totals.requests / 50;
        BehaviourSigns { files: often(tally.totals.files), referrers: often(tally.totals.referred) }
    }

    /// Classifies a client with the `User-Agent` `agent`.
    pub fn judge(self, visitor: &ClientTally, agent: &str) -> ClientJudgement {
        let lower = agent.to_ascii_lowercase();
        if PROGRAMS.iter().any(|program| lower.contains(program)) {
            return ClientJudgement {
                kind: ClientKind::Robot,
                why: vec!["identifies itself as a program"],
            };
        }
        let (mut points, mut why) = (0, Vec::new());
        for (sign, weight, text) in self.signs(visitor, agent) {
            if sign {
                points += weight;
                why.push((weight, text));
            }
        }
        let kind = match points {
            2.. => ClientKind::Robot,
            ..=-2 => ClientKind::People,
            _ => ClientKind::Unclear,
        };
        let speaks = |weight: i32| match kind {
            ClientKind::Robot => weight > 0,
            ClientKind::People => weight < 0,
            ClientKind::Unclear => true,
        };
        let why = why.into_iter().filter(|(weight, _)| speaks(*weight)).map(|(_, text)| text);
        ClientJudgement { kind, why: why.collect() }
    }

    /// All signs: whether the client shows it, its weight, and its text.
    fn signs(self, visitor: &ClientTally, agent: &str) -> [(bool, i32, &'static str); 11] {
        let ClientTally { requests, pages, files, referred, gaps, hours, .. } = *visitor;
        let many = pages >= PAGES_MIN;
        let paced = gaps.count >= 10;
        let quick = gaps.quick * 2 > gaps.count;
        let files_known = self.files;
        [
            (files_known && many && files * 10 < pages, 2, "requests pages without their files"),
            (files_known && files >= pages && files >= 3, -2, "requests the files of pages"),
            (self.referrers && many && referred * 10 < requests, 1, "sends no referrers"),
            (self.referrers && referred * 2 > requests && requests >= 3, -1, "follows links"),
            (paced && quick, 1, "sends requests without pauses"),
            (
                paced && !quick && gaps.spread < gaps.mean / 5.0,
                1,
                "sends requests at regular intervals",
            ),
            (many && !quick && gaps.spread > gaps.mean / 3.0, -1, "pauses like a reader"),
            (hours.count_ones() >= 20 && pages >= 200, 1, "never sleeps"),
            (visitor.robots, 1, "reads robots.txt"),
            (agent.is_empty() && many, 1, "has no user agent"),
            (requests >= 20 && visitor.errors * 2 > requests, 1, "requests missing pages"),
        ]
    }
}

/// Many addresses that behave as one client.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The common network or agent, for people.
    pub name: String,
    pub members: Vec<IpAddr>,
}

/// The minimum number of addresses of a swarm.
const MEMBERS_MIN: usize = 8;
/// A swarm needs more than this part of all CPU time: one in `CPU_PART_MIN`.
const CPU_PART_MIN: u64 = 100;

/// The swarms among the clients that do not look like people: first those of one network, then,
/// among the remaining clients, those with the same agent.
pub fn swarms(tally: &ReplayTally, kinds: &HashMap<IpAddr, ClientKind>) -> Vec<Swarm> {
    let suspects: Vec<(IpAddr, &ClientTally)> = tally
        .visitors
        .iter()
        .filter(|(address, _)| kinds.get(address).is_none_or(|kind| *kind != ClientKind::People))
        .map(|(address, visitor)| (*address, visitor))
        .collect();
    let by_network = |(address, _): &(IpAddr, &ClientTally)| network(*address, 24, 48).to_string();
    let mut found = alike(tally, &suspects, by_network);
    for swarm in &mut found {
        let bits = if swarm.name.contains(':') { 48 } else { 24 };
        swarm.name = format!("{}/{bits}", swarm.name);
    }
    let taken: std::collections::HashSet<IpAddr> =
        found.iter().flat_map(|swarm| swarm.members.iter().copied()).collect();
    let left: Vec<_> =
        suspects.into_iter().filter(|(address, _)| !taken.contains(address)).collect();
    let by_agent =
        |(_, visitor): &(IpAddr, &ClientTally)| tally.agents.name(visitor.agent).to_owned();
    let mut named = alike(tally, &left, by_agent);
    named.retain(|swarm| !swarm.name.is_empty());
    found.extend(named);
    found
}

/// Groups of clients with the same value of `common` that behave like one program.
fn alike(
    tally: &ReplayTally,
    suspects: &[(IpAddr, &ClientTally)],
    common: impl Fn(&(IpAddr, &ClientTally)) -> String,
) -> Vec<Swarm> {
    let mut groups: HashMap<String, Vec<&(IpAddr, &ClientTally)>> = HashMap::new();
    for suspect in suspects {
        groups.entry(common(suspect)).or_default().push(suspect);
    }
    let mut swarms: Vec<(u64, Swarm)> = Vec::new();
    for (name, members) in groups {
        let needed: u64 = members.iter().map(|(_, visitor)| visitor.needed.0).sum();
        let largest = members.iter().map(|(_, visitor)| visitor.needed.0).max().unwrap_or(0);
        let pages: u64 = members.iter().map(|(_, visitor)| u64::from(visitor.pages)).sum();
        let files: u64 = members.iter().map(|(_, visitor)| u64::from(visitor.files)).sum();
        let heavy = needed > tally.totals.needed.0 / CPU_PART_MIN;
        // One crawler with some unrelated clients is no swarm.
        let even = largest < needed / 2;
        if members.len() >= MEMBERS_MIN && heavy && even && files * 5 < pages {
            let members = members.into_iter().map(|(address, _)| *address).collect();
            swarms.push((needed, Swarm { name, members }));
        }
    }
    swarms.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.name.cmp(&y.name)));
    swarms.into_iter().map(|(_, swarm)| swarm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::tally::visitor::PageGaps;

    const ALL: BehaviourSigns = BehaviourSigns { files: true, referrers: true };
    const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0";

    fn reader() -> ClientTally {
        let gaps = PageGaps { count: 9, quick: 0, mean: 25.0, spread: 20.0 };
        let (requests, pages, files, referred) = (70, 10, 60, 65);
        ClientTally {
            requests,
            pages,
            files,
            referred,
            gaps,
            hours: 0b11,
            ..ClientTally::default()
        }
    }

    fn crawler() -> ClientTally {
        let gaps = PageGaps { count: 999, quick: 900, mean: 0.2, spread: 0.2 };
        ClientTally { requests: 1_000, pages: 1_000, gaps, ..ClientTally::default() }
    }

    #[test]
    fn readers_and_crawlers_are_told_apart() {
        let reader = ALL.judge(&reader(), BROWSER);
        assert_eq!(reader.kind, ClientKind::People, "{reader:?}");
        assert!(reader.why.contains(&"pauses like a reader"), "{reader:?}");
        let crawler = ALL.judge(&crawler(), BROWSER);
        assert_eq!(crawler.kind, ClientKind::Robot, "{crawler:?}");
        assert!(crawler.why.contains(&"sends requests without pauses"), "{crawler:?}");
        let honest = ALL.judge(&self::reader(), "Mozilla/5.0 (compatible; ExampleBot/2.1)");
        assert_eq!(honest.kind, ClientKind::Robot);
        assert_eq!(honest.why, ["identifies itself as a program"]);
    }

    #[test]
    fn who_did_little_is_not_judged() {
        let once = ClientTally { requests: 2, pages: 2, ..ClientTally::default() };
        assert_eq!(ALL.judge(&once, BROWSER).kind, ClientKind::Unclear);
        // A log without files and referrers shows fewer signs; absent ones do not count.
        let none = BehaviourSigns { files: false, referrers: false };
        let slow = ClientTally { gaps: PageGaps { quick: 0, ..crawler().gaps }, ..crawler() };
        assert_eq!(none.judge(&slow, BROWSER).kind, ClientKind::Unclear);
        assert_eq!(none.judge(&crawler(), BROWSER).kind, ClientKind::Unclear);
    }
}
