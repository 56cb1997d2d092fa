//! The `master` section: where gatekeepers connect, and the rules of each domain.
//!
//! Rates have the syntax of Smockron's configuration (`1/sec`, `7 per min`, `10/2min`), but
//! fractions are kept and zero is rejected. The settings are described in `settings::master`.

use super::limits::keys_max;
use super::proxy::{count, duration};
use crate::address;
use crate::reader::{Read, SectionReader, one_of, within};
use crate::settings::master::{DomainSettings, MasterSettings};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::history::{self, RequestHistory};
use evenkeel_core::limit::{KeyPart, LIMITS_MAX, Limit, LimitCondition, LimitUnit};
use evenkeel_core::units::{Cost, ExactRate, Nanos, Rate, Weight};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Default of `keys_max`: identifiers that each rule remembers.
const KEYS_DEFAULT: usize = 65_536;
/// Maximum number of domains. Each domain is a topic with subscriptions by its gatekeepers.
const DOMAINS_MAX: usize = 1_000;
/// Maximum length of a domain's name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The longest interval between two requests of a rule.
const INTERVAL_MAX: Nanos = Nanos::from_secs(366 * 86_400);

/// The algorithm of a rule, in the words of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleAlgorithm {
    History,
    Gcra,
}

impl RuleAlgorithm {
    const ALL: [(&str, RuleAlgorithm); 2] =
        [("history", RuleAlgorithm::History), ("gcra", RuleAlgorithm::Gcra)];
}

impl fmt::Display for RuleAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(RuleAlgorithm::ALL[*self as usize].0)
    }
}

/// Defaults for rules without these keys.
#[derive(Clone, Copy)]
struct DomainRuleDefaults {
    word: RuleAlgorithm,
    keys: usize,
}

/// Reads the section. `keys_default` is `state.keys_max`.
pub fn read(master: &mut SectionReader<'_, '_>, keys_default: Option<usize>) -> MasterSettings {
    let local = SocketAddr::from(([127, 0, 0, 1], 10_004));
    let accounting = master.value("accounting", ZmqListenAddress(local), endpoint).0;
    let next = SocketAddr::new(accounting.ip(), accounting.port().saturating_add(1));
    let control = master.value("control", ZmqListenAddress(next), endpoint).0;
    let allow = master.values("allow", address::network);
    let word =
        master.value("algorithm", RuleAlgorithm::History, |text| one_of(text, &RuleAlgorithm::ALL));
    let keys = master.value("keys_max", keys_default.unwrap_or(KEYS_DEFAULT), keys_max);
    let ahead_max = master.value("ahead_max", Nanos::from_secs(60), |text| {
        within(duration(text)?, Nanos::ZERO..=Nanos::from_secs(86_400))
    });
    let connections =
        master.value("connections", 1024, |text| within(count(text)?, 1..=65_536)) as usize;
    let told_max =
        master.value("told_max", 100_000, |text| within(count(text)?, 0..=10_000_000)) as usize;
    let drain = master.value("drain", Nanos::from_secs(5), |text| {
        within(duration(text)?, Nanos::ZERO..=Nanos::from_secs(86_400))
    });
    let domains = domains(master, DomainRuleDefaults { word, keys });
    let drain = Duration::from_nanos(drain.0);
    MasterSettings { accounting, control, allow, ahead_max, connections, told_max, drain, domains }
}

fn domains(master: &mut SectionReader<'_, '_>, ground: DomainRuleDefaults) -> Vec<DomainSettings> {
    let read = master.named("domains", |section| rule(section, ground));
    if read.is_empty() {
        master.fault("domains", "a master without `domains` has nobody to hold; name one");
    }
    if read.len() > DOMAINS_MAX {
        master.fault("domains", format!("more than {DOMAINS_MAX} domains; use several masters"));
    }
    let mut domains = Vec::with_capacity(read.len());
    for (name, rules) in read {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            let what = format!("the name of a domain has 1 to {NAME_BYTES_MAX} bytes, none is NUL");
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
    for key in ["rate", "burst"] {
        if !section.has(key) {
            section.fault(key, format!("a rule of a domain needs `{key}`"));
        }
    }
    let rate = section.optional("rate", interval);
    let burst = section.optional("burst", burst);
    let word = section.value("algorithm", ground.word, |text| one_of(text, &RuleAlgorithm::ALL));
    let keys_max = section.value("keys_max", ground.keys, keys_max);
    let interval = rate?;
    let algorithm = algorithm(word, interval, burst?.count(interval));
    let algorithm = algorithm.map_err(|what| section.fault("burst", what)).ok()?;
    Some(Limit {
        name: "".into(),
        by: vec![KeyPart::Tag],
        when: LimitCondition::default(),
        unit: LimitUnit::Hits,
        algorithm,
        action: None,
        weight: Weight::ONE,
        keys_max,
        shadow: false,
    })
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
    let interval = interval.ok().filter(|length| (Nanos(1)..=INTERVAL_MAX).contains(length));
    interval.ok_or_else(wrong)
}

/// Appends the unit `ms` if the text has no unit.
fn in_millis(text: &str) -> String {
    let text = text.trim_end();
    let last = |c: char| c.is_ascii_digit() || c == '/';
    let bare = text.ends_with(last) || text.ends_with("per");
    format!("{text}{}", if bare { "ms" } else { "" })
}

/// A burst as it is written in the file.
#[derive(Clone, Copy)]
enum WrittenBurst {
    Requests(u64),
    /// The number of requests that the rate admits within this time.
    Within(Nanos),
}

impl WrittenBurst {
    fn count(self, interval: Nanos) -> u64 {
        match self {
            WrittenBurst::Requests(count) => count,
            WrittenBurst::Within(length) => length.0 / interval.0.max(1),
        }
    }
}

/// Reads a burst: a number of requests, or the time within which the rate admits them.
fn burst(text: &str) -> Read<WrittenBurst> {
    if let Ok(requests) = count(text) {
        return within(requests, 0..=1_000_000_000).map(WrittenBurst::Requests);
    }
    let wrong = |_| "write a number of requests, or a length of time such as 10s".to_owned();
    duration(text).map(WrittenBurst::Within).map_err(wrong)
}

/// An address in the notation of ZeroMQ.
struct ZmqListenAddress(SocketAddr);

impl fmt::Display for ZmqListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.0)
    }
}

/// Reads `tcp://127.0.0.1:10004` or `tcp://*:10004`; without a scheme it is TCP.
fn endpoint(text: &str) -> Read<ZmqListenAddress> {
    let rest = match text.split_once("://") {
        None => text,
        Some(("tcp", rest)) => rest,
        Some(_) => return Err("write tcp://127.0.0.1:10004; only TCP is spoken".to_owned()),
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
