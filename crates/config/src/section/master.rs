//! The `master` section: where gatekeepers connect, and the rules of each domain.
//!
//! Rates have the syntax of Smockron's configuration (`1/sec`, `7 per min`, `10/2min`), but
//! fractions are kept and zero is rejected. The settings are described in `settings::master`.

use super::std_time;
use crate::reader::SectionReader;
use crate::rows::master::{self as rows, RuleAlgorithm, ZmqListenAddress};
use crate::settings::master::{DomainSettings, MasterSettings};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::history::{self, RequestHistory};
use evenkeel_core::limit::{KeyPart, LIMITS_MAX, Limit, LimitCondition, LimitUnit};
use evenkeel_core::units::{Cost, Nanos, Rate, Weight};
use std::net::SocketAddr;

/// Default of `keys_max`: identifiers that each rule remembers.
const KEYS_DEFAULT: usize = 65_536;
/// Maximum number of domains. Each domain is a topic with subscriptions by its gatekeepers.
const DOMAINS_MAX: usize = 1_000;
/// Maximum length of a domain's name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Defaults for rules without these keys.
#[derive(Clone, Copy)]
struct DomainRuleDefaults {
    word: RuleAlgorithm,
    keys: usize,
}

/// Reads the section. `keys_default` is `state.keys_max`.
pub fn read(master: &mut SectionReader<'_, '_>, keys_default: Option<usize>) -> MasterSettings {
    let accounting = master.key(&rows::ACCOUNTING).0;
    let next = SocketAddr::new(accounting.ip(), accounting.port().saturating_add(1));
    let control = master.key_or(&rows::CONTROL, ZmqListenAddress(next)).0;
    let allow = master.key(&rows::ALLOW);
    let word = master.key(&rows::ALGORITHM);
    let keys = master.key_or(&rows::KEYS, keys_default.unwrap_or(KEYS_DEFAULT));
    let ahead_max = master.key(&rows::AHEAD_MAX);
    let connections = master.key(&rows::CONNECTIONS);
    let told_max = master.key(&rows::TOLD_MAX);
    let drain = std_time(master.key(&rows::DRAIN));
    let domains = domains(master, DomainRuleDefaults { word, keys });
    MasterSettings { accounting, control, allow, ahead_max, connections, told_max, drain, domains }
}

fn domains(master: &mut SectionReader<'_, '_>, ground: DomainRuleDefaults) -> Vec<DomainSettings> {
    let read = master.named(&rows::DOMAINS, |section| rule(section, ground));
    if read.is_empty() {
        master.fault("domains", "a master without `domains` has no effect; add one");
    }
    if read.len() > DOMAINS_MAX {
        master.fault("domains", format!("more than {DOMAINS_MAX} domains; use several masters"));
    }
    let mut domains = Vec::with_capacity(read.len());
    for (name, rules) in read {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            let what =
                format!("the name of a domain must have 1 to {NAME_BYTES_MAX} bytes without NUL");
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
    let rate = section.key(&rows::RATE);
    let burst = section.key(&rows::BURST);
    let word = section.key_or(&rows::RULE_ALGORITHM, ground.word);
    let keys_max = section.key_or(&rows::RULE_KEYS, ground.keys);
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
