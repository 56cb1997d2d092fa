//! The `master` section: where gatekeepers connect, and the rules of each domain.
//!
//! Rates have the syntax of Smockron's configuration (`1/sec`, `7 per min`, `10/2min`), but
//! fractions are kept and zero is rejected. The settings are described in `settings::master`.

use super::{gatekeeper, limits};
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::{SectionReader, settings};
use crate::settings::tags::tag_limit;
use crate::values::{DAY, Read, YEAR, count, duration, within, word_enum};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::history::{self, RequestHistory};
use evenkeel_core::limit::{LIMITS_MAX, Limit};
use evenkeel_core::units::{Cost, ExactRate, Nanos, Rate};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::time::Duration;

settings! {
    /// The master of gatekeepers. Gatekeepers report their requests to it, and it publishes the
    /// identifiers that have to wait and until when.
    #[derive(Clone, Debug, PartialEq)]
    pub struct MasterSettings from read(master, keys_default: Option<usize>), TABLE = "master";

    /// Where gatekeepers report requests: `tcp://host:port`, `tcp://*:port`.
    pub accounting: SocketAddr, ACCOUNTING: DefaultedKey<SocketAddr> =
        zmq("accounting").default_with(|| SocketAddr::from(([127, 0, 0, 1], 10_004))).restart();
    /// Where gatekeepers get the clients to hold.
    pub control: SocketAddr, CONTROL: ConfigKey<SocketAddr> = zmq("control")
        .default_note("the next port").restart().example("tcp://127.0.0.1:10005")
        => master.key_or(&CONTROL, next(accounting));
    /// Networks that may connect. Set this if the ports are reachable beyond loopback, because any
    /// host that reaches them can have any client held.
    pub allow: Vec<IpNet>, ALLOW: ListKey<IpNet> = ConfigKey::text("allow", address::network).list()
        .default_note("any network").restart().example("10.0.0.0/8");
    /// The [algorithm](master.md) of rules without one.
    ALGORITHM: DefaultedKey<RuleAlgorithm> =
        ConfigKey::words("algorithm", RuleAlgorithm::WORDS).default(RuleAlgorithm::History);
    let word = master.key(&ALGORITHM);
    /// Number of identifiers that each rule remembers; a `history` takes 8 bytes for each request
    /// of its burst.
    KEYS: ConfigKey<usize> = limits::keys_max().default_note("`state.keys_max`, else 65 536");
    let keys = master.key_or(&KEYS, keys_default.unwrap_or(KEYS_DEFAULT));
    /// Timestamps further in the future are reduced to this.
    pub ahead_max: Nanos, AHEAD_MAX: DefaultedKey<Nanos> = ConfigKey::duration("ahead_max")
        .within(Nanos::ZERO, DAY).default(Nanos::from_secs(60)).restart()
        .low("requests that a gatekeeper delays for longer count as if they came earlier")
        .high("a gatekeeper with a wrong clock causes long holds");
    /// Connections of each kind at once. Further ones are closed at once.
    pub connections: usize, CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole("connections")
        .within(1, 65_536).default(1024).restart()
        .low("gatekeepers without a connection decide nothing").high("open files");
    /// Number of identifiers of each domain to send to a newly connected gatekeeper.
    pub told_max: usize, TOLD_MAX: DefaultedKey<usize> = ConfigKey::whole("told_max")
        .within(0, 10_000_000).default(100_000).restart()
        .low("a new gatekeeper admits some requests that the others hold").high("memory");
    /// Time for the last messages to be sent when the process stops.
    pub drain: Duration, DRAIN: DefaultedKey<Nanos> = ConfigKey::duration("drain")
        .within(Nanos::ZERO, DAY).default(Nanos::from_secs(5)).high("stopping takes long");
    /// Names, each with a list of [rules](#masterdomains); the longest wait of all rules applies.
    /// Without rules no request waits.
    pub domains: Vec<DomainSettings>, DOMAINS: SubsectionKey =
        SubsectionKey::named("domains", &RULE).default_note("required")
        => domains(master, DomainRuleDefaults { word, keys });
}

impl MasterSettings {
    /// The warning for a master that accepts any host, with its fix.
    pub const OPEN_WARNING: &str = "the master listens beyond loopback, and any host that reaches \
                                    it can have clients held: name the networks of the \
                                    gatekeepers in `allow`";

    /// Whether the master listens beyond loopback and accepts connections from any network.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let beyond = |address: &SocketAddr| !address.ip().is_loopback();
        self.allow.is_empty() && [&self.accounting, &self.control].into_iter().any(beyond)
    }
}

/// A domain and its rules.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainSettings {
    /// The name that gatekeepers use for it.
    pub name: String,
    /// The rules of the domain. The longest wait of all rules applies; without rules no request
    /// waits.
    pub rules: Vec<Limit>,
}

section! {
    RULE = "master.domains";

    /// Requests per interval: `2/s`, `100/hour`, `7 per min`, `10/2min`. A missing unit means `ms`.
    /// Fractions of a millisecond are kept.
    RATE: ConfigKey<Nanos> = ConfigKey::text("rate", interval).range_note("above 0").required()
        .example("2/s").low("ordinary use is held").high("the rule has no effect");
    /// Requests that are free, or a duration: the number of requests that the rate admits within
    /// it.
    BURST: ConfigKey<WrittenBurst> = ConfigKey::opaque("burst", burst)
        .range_note("`history`: 1 to 255; `gcra`: 0 to 1 000 000 000").required().example("10s")
        .low("short peaks are held").high("a client can send many requests before it is held");
    /// As in `master`.
    RULE_ALGORITHM: ConfigKey<RuleAlgorithm> =
        ConfigKey::words("algorithm", RuleAlgorithm::WORDS).default_note("that of `master`");
    /// As in `master`.
    RULE_KEYS: ConfigKey<usize> = limits::keys_max().default_note("that of `master`");
}

/// Default of `keys_max`: identifiers that each rule remembers.
const KEYS_DEFAULT: usize = 65_536;
/// Maximum number of domains. Each domain is a topic with subscriptions by its gatekeepers.
const DOMAINS_MAX: usize = 1_000;

/// Defaults for rules without these keys.
#[derive(Clone, Copy)]
struct DomainRuleDefaults {
    word: RuleAlgorithm,
    keys: usize,
}

/// The same address at the next port.
fn next(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port().saturating_add(1))
}

fn domains(master: &mut SectionReader<'_, '_>, ground: DomainRuleDefaults) -> Vec<DomainSettings> {
    let read = master.named(&DOMAINS, |section| rule(section, ground));
    if read.is_empty() {
        master.fault("domains", "a master without `domains` has no effect; add one");
    }
    if read.len() > DOMAINS_MAX {
        master.fault("domains", format!("more than {DOMAINS_MAX} domains; use several masters"));
    }
    let mut domains = Vec::with_capacity(read.len());
    for (name, rules) in read {
        if let Err(what) = gatekeeper::domain(name) {
            master.fault("domains", what);
        }
        if rules.len() > LIMITS_MAX {
            let what = format!("{} rules are too many; at most {LIMITS_MAX}", rules.len());
            master.fault("domains", what);
        }
        let mut rules: Vec<Limit> = rules.into_iter().flatten().collect();
        for (index, rule) in rules.iter_mut().enumerate() {
            let number = if index == 0 { String::new() } else { format!("-{}", index + 1) };
            rule.name = format!("{name}{number}").into();
        }
        domains.push(DomainSettings { name: name.to_owned(), rules });
    }
    domains
}

fn rule(section: &mut SectionReader<'_, '_>, ground: DomainRuleDefaults) -> Option<Limit> {
    section.require(&["rate", "burst"], |key| format!("a rule of a domain needs `{key}`"));
    let rate = section.key(&RATE);
    let burst = section.key(&BURST);
    let word = section.key_or(&RULE_ALGORITHM, ground.word);
    let keys_max = section.key_or(&RULE_KEYS, ground.keys);
    let interval = rate?;
    let algorithm = algorithm(word, interval, burst?.count(interval));
    let algorithm = algorithm.map_err(|what| section.fault("burst", what)).ok()?;
    Some(tag_limit("".into(), algorithm, keys_max))
}

fn algorithm(word: RuleAlgorithm, interval: Nanos, burst: u64) -> Result<Algorithm, String> {
    match word {
        RuleAlgorithm::History => {
            let most = history::BURST_MAX;
            let fits = usize::try_from(burst).ok().filter(|burst| *burst <= most);
            let history = fits.and_then(|burst| RequestHistory::new(burst, interval).ok());
            history.map(Algorithm::History).ok_or_else(|| {
                format!("`history` remembers 1 to {most} requests; `algorithm: gcra` has no bound")
            })
        }
        RuleAlgorithm::Gcra => {
            let rate = Rate::per(Cost::hits(1), interval).ok_or("the interval is zero")?;
            Ok(Algorithm::Debt(DebtBucket::new(rate, Cost::hits(burst))))
        }
    }
}

word_enum! {
    /// The algorithm of a rule.
    pub(crate) enum RuleAlgorithm {
        History = "history",
        Gcra = "gcra",
    }
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

/// The row of an address in the notation of ZeroMQ.
const fn zmq(name: &'static str) -> ConfigKey<SocketAddr> {
    ConfigKey::opaque(name, endpoint).written(|_, address| format!("tcp://{address}"))
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
fn endpoint(text: &str) -> Read<SocketAddr> {
    let rest = match text.split_once("://") {
        None => text,
        Some(("tcp", rest)) => rest,
        Some(_) => return Err("write tcp://127.0.0.1:10004; only TCP is supported".to_owned()),
    };
    address::listen(rest)
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
