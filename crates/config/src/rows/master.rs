//! The keys of `master` and of the rules in `master.domains`.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::limits;
use crate::values::{DAY, Read, YEAR, count, duration, within};
use evenkeel_core::units::{Cost, ExactRate, Nanos};
use ipnet::IpNet;
use std::fmt;
use std::net::SocketAddr;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "master",
    keys: &[
        &ACCOUNTING,
        &CONTROL,
        &ALLOW,
        &ALGORITHM,
        &KEYS,
        &AHEAD_MAX,
        &CONNECTIONS,
        &TOLD_MAX,
        &DRAIN,
        &DOMAINS,
    ],
};

/// The rows of a rule.
pub static RULE: SectionTable =
    SectionTable { path: "master.domains", keys: &[&RATE, &BURST, &RULE_ALGORITHM, &RULE_KEYS] };

pub(crate) static ACCOUNTING: DefaultedKey<ZmqListenAddress> = ConfigKey::text(
    "accounting",
    endpoint,
    "Where gatekeepers report requests: `tcp://host:port`, `tcp://*:port`.",
)
.restart()
.default_with(|| ZmqListenAddress(SocketAddr::from(([127, 0, 0, 1], 10_004))));

pub(crate) static CONTROL: ConfigKey<ZmqListenAddress> =
    ConfigKey::text("control", endpoint, "Where gatekeepers get the clients to hold.")
        .restart()
        .default_note("the next port")
        .example("tcp://127.0.0.1:10005");

pub(crate) static ALLOW: ListKey<IpNet> = ConfigKey::text(
    "allow",
    address::network,
    "Networks that may connect. Beyond loopback it should be set: any host that reaches the ports \
     can have any client held.",
)
.restart()
.default_note("any network")
.example("10.0.0.0/8")
.list();

/// The words for each algorithm of a rule.
const ALGORITHMS: [(&str, RuleAlgorithm); 2] =
    [("history", RuleAlgorithm::History), ("gcra", RuleAlgorithm::Gcra)];

pub(crate) static ALGORITHM: DefaultedKey<RuleAlgorithm> =
    ConfigKey::words("algorithm", &ALGORITHMS, "The [algorithm](master.md) of rules without one.")
        .default(RuleAlgorithm::History);

pub(crate) static KEYS: ConfigKey<usize> = limits::keys_max(
    "Number of identifiers that each rule remembers; a `history` takes 8 bytes for each request of \
     its burst.",
)
.default_note("`state.keys_max`, else 65 536");

pub(crate) static AHEAD_MAX: DefaultedKey<Nanos> =
    ConfigKey::duration("ahead_max", "Timestamps further in the future are reduced to this.")
        .restart()
        .within(Nanos::ZERO, DAY)
        .low("requests that a gatekeeper delays for longer count as if they came earlier")
        .high("a gatekeeper with a wrong clock causes long holds")
        .default(Nanos::from_secs(60));

pub(crate) static CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole(
    "connections",
    "Connections of each kind at once. Further ones are closed at once.",
)
.restart()
.within(1, 65_536)
.low("gatekeepers without a connection decide nothing")
.high("open files")
.default(1024);

pub(crate) static TOLD_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "told_max",
    "Identifiers of each domain that a newly connected gatekeeper is sent.",
)
.restart()
.within(0, 10_000_000)
.low("a new gatekeeper admits some requests that the others hold")
.high("memory")
.default(100_000);

pub(crate) static DRAIN: DefaultedKey<Nanos> =
    ConfigKey::duration("drain", "Time for the last messages to be sent when the process stops.")
        .within(Nanos::ZERO, DAY)
        .high("stopping takes long")
        .default(Nanos::from_secs(5));

pub(crate) static DOMAINS: SubsectionKey = SubsectionKey::named(
    "domains",
    &RULE,
    "Names, each with a list of [rules](#masterdomains); the longest wait of all rules applies. \
     Without rules no request waits.",
)
.default_note("required");

pub(crate) static RATE: ConfigKey<Nanos> = ConfigKey::text(
    "rate",
    interval,
    "Requests per interval: `2/s`, `100/hour`, `7 per min`, `10/2min`. A missing unit means `ms`. \
     Fractions of a millisecond are kept.",
)
.range_note("above 0")
.low("ordinary use is held")
.high("the rule has no effect")
.example("2/s")
.required();

pub(crate) static BURST: ConfigKey<WrittenBurst> = ConfigKey::opaque(
    "burst",
    burst,
    "Requests that are free, or a duration: the number of requests that the rate admits within it.",
)
.range_note("`history`: 1 to 255; `gcra`: 0 to 1 000 000 000")
.low("short peaks are held")
.high("a client can send many requests before it is held")
.example("10s")
.required();

pub(crate) static RULE_ALGORITHM: ConfigKey<RuleAlgorithm> =
    ConfigKey::words("algorithm", &ALGORITHMS, "As in `master`.").default_note("that of `master`");

pub(crate) static RULE_KEYS: ConfigKey<usize> =
    limits::keys_max("As in `master`.").default_note("that of `master`");

/// The algorithm of a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleAlgorithm {
    History,
    Gcra,
}

/// A burst as it is written in the file.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WrittenBurst {
    Requests(u64),
    /// The number of requests that the rate admits within this time.
    Within(Nanos),
}

impl WrittenBurst {
    pub(crate) fn count(self, interval: Nanos) -> u64 {
        match self {
            WrittenBurst::Requests(count) => count,
            WrittenBurst::Within(length) => length.0 / interval.0.max(1),
        }
    }
}

/// An address in the notation of ZeroMQ.
#[derive(Clone, PartialEq)]
pub(crate) struct ZmqListenAddress(pub SocketAddr);

impl fmt::Display for ZmqListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.0)
    }
}

/// Reads a rate in whole requests and returns the interval between two requests. A period without a
/// unit is in milliseconds.
fn interval(text: &str) -> Read<Nanos> {
    let wrong = || "write it as 2/s, 100/hour, 7 per min or 10/2min, more than 0".to_owned();
    if text.contains('.') {
        return Err(wrong());
    }
    let pace: ExactRate = in_millis(text).parse().map_err(|_| wrong())?;
    let interval = u128::from(pace.period().0) * u128::from(Cost::hits(1).0);
    let interval = u64::try_from(interval / u128::from(pace.cost().0)).map(Nanos);
    let interval = interval.ok().filter(|length| (Nanos(1)..=YEAR).contains(length));
    interval.ok_or_else(wrong)
}

/// Appends the unit `ms` if the text has no unit.
fn in_millis(text: &str) -> String {
    let text = text.trim_end();
    let last = |c: char| c.is_ascii_digit() || c == '/';
    let bare = text.ends_with(last) || text.ends_with("per");
    format!("{text}{}", if bare { "ms" } else { "" })
}

/// Reads a burst: a number of requests, or the time within which the rate admits them.
fn burst(text: &str) -> Read<WrittenBurst> {
    if let Ok(requests) = count(text) {
        return within(requests, 0..=1_000_000_000).map(WrittenBurst::Requests);
    }
    let wrong = |_| "write a number of requests, or a duration such as 10s".to_owned();
    duration(text).map(WrittenBurst::Within).map_err(wrong)
}

/// Reads `tcp://127.0.0.1:10004` or `tcp://*:10004`; without a scheme it is TCP.
fn endpoint(text: &str) -> Read<ZmqListenAddress> {
    let rest = match text.split_once("://") {
        None => text,
        Some(("tcp", rest)) => rest,
        Some(_) => return Err("write tcp://127.0.0.1:10004; only TCP is supported".to_owned()),
    };
    address::listen(rest).map(ZmqListenAddress)
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s22_rates_keep_their_fractions_and_zero_is_refused() {
        for (text, nanos) in [
            ("1/sec", 1_000_000_000),
            ("3/sec", 333_333_333),
            ("7 per min", 8_571_428_571),
            ("7per  min", 8_571_428_571),
            (" 10 / 2 min ", 12_000_000_000),
            ("100/hour", 36_000_000_000),
            ("10/2min", 12_000_000_000),
            ("1 per 5s", 5_000_000_000),
            ("2/day", 43_200_000_000_000),
            ("1/", 1_000_000),
            ("1 per", 1_000_000),
            ("1/500", 500_000_000),
            ("2000/sec", 500_000),
            ("5000/sec", 200_000),
            ("1000/h", 3_600_000_000),
            ("2/s", 500_000_000),
        ] {
            assert_eq!(interval(text), Ok(Nanos(nanos)), "{text}");
        }
        for text in ["1.5/sec", "1/week", "1/secs", "0/sec", "x", "", "1", "/s", "-1/s", "1/0s"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn s23_a_burst_may_be_a_length_of_time() {
        let count = |text| burst(text).map(|burst| burst.count(Nanos::from_millis(500)));
        assert_eq!(count("10s"), Ok(20));
        assert_eq!(count("3"), Ok(3));
        assert_eq!(count("0"), Ok(0));
        assert!(count("ten").is_err() && count("-1").is_err());
    }
}
