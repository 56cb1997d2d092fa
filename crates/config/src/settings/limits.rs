//! The limits of a door: a list of sections, each with a key template, a condition and an
//! algorithm.
//!
//! A limit has exactly one of `share`, `rate` and `window`. A key that belongs to another algorithm
//! is a fault. How each one counts: `evenkeel_core::bucket`.

mod key_parts;
mod models;

pub(crate) use key_parts::{KeyTemplateWord, part};

use super::conditions::{self, CONDITION, GroupSettings};
use super::peers::PeersSettings;
use super::proxy::{self, ProxyPreset};
use crate::fault::{ConfigFault, TextPlace};
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, ValueSyntax, section};
use crate::machine::Machine;
use crate::reader::SectionReader;
use crate::tree::{self, YamlNode, YamlValue};
use crate::values::{self, DAY, Read, count, within};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::quota::QuotaBucket;
use evenkeel_core::bucket::sliding::{SlidingWindow, WINDOW_MAX};
use evenkeel_core::condition::Condition;
use evenkeel_core::fact::FactSet;
use evenkeel_core::limit::{KEYS_MAX, KeyPart, LIMITS_MAX, Limit, LimitAction, LimitUnit};
use evenkeel_core::queue::WorkUnit;
use evenkeel_core::units::{Cost, CpuShare, ExactRate, Nanos, QuantityParseError, Rate, Weight};

section! {
    TABLE = "proxy.limits";

    /// The unique name of the limit, in metrics and in the log.
    NAME: ConfigKey<Box<str>> = ConfigKey::text("name", values::name)
        .range_note("1 to 64 letters, digits, `-`, `_`, `.`").required().example("logins");
    /// The key by which the limit counts: one [part](#what-by-takes), or a list of up to 8 parts.
    BY: ListKey<KeyTemplateWord> = ConfigKey::opaque("by", part).list().required().example("ip/24");
    /// The [condition](#when) of the limit.
    WHEN: SubsectionKey = SubsectionKey::one("when", &CONDITION).default_note("all requests");
    /// CPU time as a share of `cpus`.
    SHARE: ConfigKey<CpuShare> = ConfigKey::opaque("share", share)
        .range_note("above 0, at most 100%").example("10%").low("ordinary use is held")
        .high("one client can use the whole server");
    /// Requests per time, or tokens or money (`unit`). A client over the limit gets 429.
    RATE: ConfigKey<ExactRate> = ConfigKey::opaque("rate", rate)
        .range_note("above 0").example("10/s").low("ordinary use is refused")
        .high("the limit has no effect");
    /// The unit that `rate` counts. `hits`: requests. `tokens`: tokens of language models, prompt
    /// and output alike. `money`: the cost of tokens by [`tokens.prices`](#proxytokensprices).
    UNIT: ConfigKey<LimitUnit> = ConfigKey::words(
        "unit",
        &[
            ("hits", LimitUnit::Hits),
            ("tokens", LimitUnit::Tokens),
            ("money", LimitUnit::Money),
        ],
    )
    .default_note("`hits`");
    /// Length of a sliding window over which CPU time is summed, in whole seconds. The resolution
    /// is a second up to 60 s, and a sixtieth of the window beyond that. Needs `max`.
    WINDOW: ConfigKey<Nanos> =
        ConfigKey::duration("window").within(Nanos::from_secs(1), WINDOW_MAX).example("15s");
    /// With `window`: CPU time, or a share of `cpus` times the window. A client that reaches it is
    /// blocked for one window, which `Retry-After` states.
    MAX: ConfigKey<Nanos> =
        ConfigKey::opaque("max", |text| cpu_time(text, Nanos::from_secs(1), 1.0))
            .range_note("1ms to 1d, or above 0 to 100%").default_note("required with `window`")
            .example("7%").low("ordinary use is blocked").high("the limit has no effect");
    /// With `window`: each cost is rounded to the nearest multiple of this; halves are rounded up.
    ROUND: ConfigKey<Nanos> = ConfigKey::duration("round").within(Nanos(1_000), ROUND_MAX)
        .default_note("costs are not rounded").example("10ms").high("cheap requests count nothing");
    // The burst of a limit with `share`.
    /// The amount that a client can save up. With `share`: CPU time, `30s` by default; with `cost:
    /// tokens`, the work that the backends do in this time. With `rate`: requests, tokens or money.
    /// The default is the number in `rate` (5 with `5/m`), but at least 1 request.
    BURST: ConfigKey<Nanos> = ConfigKey::text("burst", values::duration)
        .within(Nanos::from_millis(1), DAY).range_note("1ms to 1d; requests: 1 to 1 000 000 000")
        .default_note("`30s`; the number in `rate`").example("30s")
        .low("short peaks are held").high("a new client can use much before it is slowed");
    /// With `share`: upper bound of the debt. Charges beyond it are forgiven.
    DEBT_MAX: ConfigKey<Nanos> = ConfigKey::duration("debt_max").within(Nanos::from_millis(1), DAY)
        .default_note("`proxy.queue.debt_max`; else with `action: queue` the burst, otherwise no \
                       bound").example("30s").low("a heavy client soon has full priority again")
        .high("a heavy client pays for longer than any other client benefits");
    /// What happens to a client over the limit; see [proxy](#proxy). `deny`: each request that
    /// matches `when` gets 403 ([deny](limits.md#deny)); such a limit has only `name`, `when` and
    /// `shadow`.
    ACTION: ConfigKey<Option<LimitAction>> = ConfigKey::words("action", &LIMIT_ACTIONS)
        .default_note("`proxy.action`; with `rate` and `window` `reject`");
    /// How much more than others the clients of this limit get while requests
    /// [queue](queue.md#some-get-more). The weights of several limits are multiplied.
    WEIGHT: DefaultedKey<Weight> =
        ConfigKey::new("weight", ValueSyntax::Number, |text| text.parse().map_err(quantity))
            .within(WEIGHTS.0, WEIGHTS.1).default(Weight::ONE)
            .low("these clients wait for all others").high("all others wait for these clients");
    /// Number of keys to remember, 24 bytes each; with `window`, 228 to 768 bytes each. The address
    /// space is reserved at the start, and memory is used as keys come.
    KEYS: ConfigKey<usize> =
        keys_max().default_note("`state.keys_max`, else [by memory](#memory-for-keys): 65 536 to \
                                 1 048 576; with `window` 65 536");
    /// Whether the limit decides, counts and reports, but [enforces
    /// nothing](limits.md#shadow-mode).
    SHADOW: ConfigKey<bool> = ConfigKey::truth("shadow").default_note("`false`");
}

section! {
    // The burst of a limit with `rate`. It shares its place in the table with [`BURST`].
    /// Requests, tokens or money to save up.
    BURST_REQUESTS: ConfigKey<u64> =
        ConfigKey::new("burst", ValueSyntax::Whole(&[]), requests_saved);
}

/// The largest burst, in requests.
pub(crate) const BURST_MAX: u64 = 1_000_000_000;

/// The entry of `limits` that stands for the default limits.
pub const DEFAULT_WORD: &str = "default";

/// The default limits of a file without `limits`.
pub const DEFAULT: &str = "
- {name: ip,    by: ip/32, share: 10%, burst: 30s}
- {name: net24, by: ip/24, share: 25%, burst: 30s}
- {name: net16, by: ip/16, share: 50%, burst: 30s}
";

/// The same with `preset: openai`.
const DEFAULT_OF_MODELS: &str = "
- {name: tenant, by: api-key, share: 25%,
   when: {any: [{header: authorization}, {header: x-api-key}, {header: api-key}]}}
- {name: ip, by: ip/32, share: 25%,
   when: {not: {any: [{header: authorization}, {header: x-api-key}, {header: api-key}]}}}
";

/// Default of `keys_max` for a window limit; 228 bytes per key for 15 s, 768 for a minute.
const WINDOW_KEYS_DEFAULT: usize = 65_536;
/// The environment in which limits are read.
#[derive(Clone, Copy)]
pub struct LimitContext<'g> {
    /// The number of CPUs that shares refer to.
    pub cpus: f64,
    /// The number of CPUs that amounts of CPU time refer to. With costs in tokens it is that of the
    /// backends, so that `30s` means their work in 30 s; otherwise it is one.
    pub amount_cpus: f64,
    /// What the costs are to the backend.
    pub work: WorkUnit,
    /// `state.keys_max`, the default of all limits.
    pub keys: Option<usize>,
    /// The default of limits with `share` or `rate` without it, 24 bytes per key.
    pub keys_by_memory: usize,
    /// The groups that conditions may name.
    pub groups: &'g GroupSettings,
    /// The instances with which the door may share its queue.
    pub peers: Option<&'g PeersSettings>,
}

impl<'g> LimitContext<'g> {
    /// The environment on this machine, without peers. `keys` is `state.keys_max`.
    pub fn new(
        machine: Machine,
        keys: Option<usize>,
        groups: &'g GroupSettings,
    ) -> LimitContext<'g> {
        let keys_by_memory = machine.keys_max();
        let (cpus, amount_cpus) = (machine.cpus, 1.0);
        let work = WorkUnit::CpuTime;
        LimitContext { cpus, amount_cpus, work, keys, keys_by_memory, groups, peers: None }
    }
}

/// Defaults that limits inherit from their door.
#[derive(Clone, Copy)]
struct LimitDefaults<'g> {
    ground: LimitContext<'g>,
    action: LimitAction,
    debt_max: Option<Nanos>,
}

/// A rule that refuses each request that may meet its condition.
#[derive(Clone, Debug, PartialEq)]
pub struct DenyRule {
    /// The name given by the operator, unique among limits.
    pub name: Box<str>,
    /// The requests that are refused.
    pub when: Condition,
    /// Whether refusals are only counted and logged.
    pub shadow: bool,
}

/// The entries of `limits`.
#[derive(Default)]
pub(crate) struct ReadLimits {
    pub counted: Vec<Limit>,
    pub denials: Vec<DenyRule>,
}

/// One entry of `limits`.
enum LimitEntry {
    Counted(Box<Limit>),
    Deny(DenyRule),
}

impl LimitEntry {
    fn name(&self) -> &str {
        match self {
            LimitEntry::Counted(limit) => &limit.name,
            LimitEntry::Deny(rule) => &rule.name,
        }
    }
}

/// Reads `limits`, or the default limits. `action` and `debt_max` are those of the door.
pub(crate) fn read(
    proxy: &mut SectionReader<'_, '_>,
    ground: LimitContext<'_>,
    action: LimitAction,
    debt_max: Option<Nanos>,
    preset: Option<ProxyPreset>,
) -> ReadLimits {
    let inherited = LimitDefaults { ground, action, debt_max };
    let text = if preset.is_some() { DEFAULT_OF_MODELS } else { DEFAULT };
    let Some(nodes) = proxy.nodes_of(&proxy::LIMITS) else {
        return ReadLimits { counted: default_limits(proxy, text, inherited), denials: Vec::new() };
    };
    match nodes.iter().find(|node| node.as_text() == Some(DEFAULT_WORD)) {
        Some(word) => with_defaults(proxy, nodes, (text, word.place), inherited),
        None => listed(proxy, nodes, inherited),
    }
}

/// Reads the limits of `nodes`.
fn listed<'n>(
    proxy: &mut SectionReader<'n, '_>,
    nodes: &'n [YamlNode],
    inherited: LimitDefaults<'_>,
) -> ReadLimits {
    let mut names: Vec<Box<str>> = Vec::new();
    let entries = proxy.sections(&proxy::LIMITS, nodes, |section| {
        let entry = entry(section, inherited)?;
        if names.iter().any(|name| **name == *entry.name()) {
            let what = format!("two limits are named `{}`; rename one", entry.name());
            section.fault("name", what);
        }
        names.push(entry.name().into());
        Some(entry)
    });
    if nodes.len() > LIMITS_MAX {
        let what =
            format!("{} limits are too many; at most {LIMITS_MAX} are possible", nodes.len());
        proxy.fault("limits", what);
    }
    let mut read = ReadLimits::default();
    for entry in entries.into_iter().flatten() {
        match entry {
            LimitEntry::Counted(limit) => read.counted.push(*limit),
            LimitEntry::Deny(rule) => read.denials.push(rule),
        }
    }
    read
}

fn default_limits(
    proxy: &mut SectionReader<'_, '_>,
    text: &str,
    inherited: LimitDefaults<'_>,
) -> Vec<Limit> {
    let nodes = default_nodes(text, TextPlace::default());
    apart(proxy, &nodes, inherited).0.counted
}

/// Reads limits of which `default` stands for those of a text. It stands at this place, which
/// their faults have.
fn with_defaults(
    proxy: &mut SectionReader<'_, '_>,
    nodes: &[YamlNode],
    (text, place): (&str, TextPlace),
    inherited: LimitDefaults<'_>,
) -> ReadLimits {
    let is_word = |node: &YamlNode| node.as_text() == Some(DEFAULT_WORD);
    let filled = nodes.iter().flat_map(|node| match is_word(node) {
        true => default_nodes(text, place),
        false => vec![node.clone()],
    });
    let nodes: Vec<YamlNode> = filled.collect();
    let (read, faults) = apart(proxy, &nodes, inherited);
    // What the default limits do is not for the user to correct.
    proxy.report(faults.into_iter().filter(|fault| !fault.is_warning || fault.place != place));
    read
}

/// Reads limits that are not in the file as they are read. Returns the faults too.
fn apart(
    proxy: &mut SectionReader<'_, '_>,
    nodes: &[YamlNode],
    inherited: LimitDefaults<'_>,
) -> (ReadLimits, Vec<ConfigFault>) {
    let mut faults = Vec::new();
    let root = YamlNode { place: proxy.place_of("limits"), ..YamlNode::map([]) };
    let mut section =
        SectionReader::open("proxy", &proxy::TABLE, Some(&root), root.place, &mut faults);
    let read = listed(&mut section, nodes, inherited);
    if let YamlValue::Map(shown) = section.close().value {
        shown.into_iter().for_each(|(_, node)| proxy.show("limits", node));
    }
    (read, faults)
}

/// The default limits of a text, all at this place.
fn default_nodes(text: &str, place: TextPlace) -> Vec<YamlNode> {
    let mut default = tree::parse(text.as_bytes()).unwrap_or(YamlNode::made(YamlValue::Null));
    default.move_to(place);
    match default.value {
        YamlValue::List(nodes) => nodes,
        _ => Vec::new(),
    }
}

/// Reads an entry of `limits`. `None` if a fault makes it impossible to build.
fn entry(section: &mut SectionReader<'_, '_>, door: LimitDefaults<'_>) -> Option<LimitEntry> {
    let action = section.node(ACTION.name()).and_then(YamlNode::as_text);
    // A word that is misspelt, in a rule that counts nothing, is probably `deny`.
    let is_known = |word: &str| LIMIT_ACTIONS.iter().any(|(known, _)| *known == word);
    let counts = COUNTING.iter().any(|key| section.written(key));
    let denies = |word: &str| word == DENY || !(is_known(word) || counts);
    match action.is_some_and(denies) {
        true => denial(section, door.ground.groups).map(LimitEntry::Deny),
        false => limit(section, door).map(|limit| LimitEntry::Counted(Box::new(limit))),
    }
}

/// The keys of limits that count, which a limit with `action: deny` does not have.
const COUNTING: [&str; 11] = [
    "by", "share", "rate", "unit", "window", "max", "round", "burst", "debt_max", "weight",
    "keys_max",
];

/// Reads a limit with `action: deny`.
fn denial(section: &mut SectionReader<'_, '_>, groups: &GroupSettings) -> Option<DenyRule> {
    section.require(&["name"], |_| "a limit needs `name`".to_owned());
    let name = section.key(&NAME);
    section.key(&ACTION);
    let (when, is_blank) =
        section.section(&WHEN, |inner| (conditions::when(inner, groups), inner.is_blank()));
    if is_blank {
        let what = "`action: deny` without `when` would refuse every request; add a condition";
        section.fault("when", what);
    }
    section.refuse(&COUNTING, "has no effect with `action: deny`, which counts nothing; remove it");
    let shadow = section.key(&SHADOW).unwrap_or(false);
    Some(DenyRule { name: name?, when, shadow })
}

/// Reads one limit. `None` if a fault makes it impossible to build.
fn limit(section: &mut SectionReader<'_, '_>, door: LimitDefaults<'_>) -> Option<Limit> {
    section.require(&["name"], |_| "a limit needs `name`".to_owned());
    let name = section.key(&NAME);
    let by = by(section);
    let when = conditions::of_rule(section, &WHEN, door.ground.groups);
    let counted = counted(section, door.ground);
    if door.ground.work == WorkUnit::Tokens {
        models::warn(section, &when, counted.as_ref().map(|(unit, _)| *unit));
    }
    let by_memory = door.ground.keys_by_memory;
    let (keys, refuses) = match &counted {
        Some((_, Algorithm::Sliding(_))) => (WINDOW_KEYS_DEFAULT, true),
        Some((unit, _)) => (by_memory, *unit != LimitUnit::Cpu),
        None => (by_memory, false),
    };
    let action = if refuses { LimitAction::Reject } else { door.action };
    let action = section.key_or(&ACTION, Some(action));
    let is_quota = matches!(counted, Some((_, Algorithm::Quota(_))));
    if is_quota && matches!(action, Some(LimitAction::Hold | LimitAction::Queue)) {
        let what = "must be `reject` or `delay` for a limit in tokens or money";
        section.fault_of("action", what);
    }
    let weight = section.key(&WEIGHT);
    let keys_max = section.key_or(&KEYS, door.ground.keys.unwrap_or(keys));
    let debt_max = section.key(&DEBT_MAX).or(door.debt_max);
    let debt_max = debt_max.map(|most| amount(most, door.ground));
    let shadow = section.key(&SHADOW).unwrap_or(false);
    let (unit, algorithm) = counted?;
    let algorithm = capped(unit, algorithm, action.unwrap_or(door.action), debt_max);
    let name = name?;
    let by = by?;
    let limit = Limit { name, by, when, unit, algorithm, action, weight, keys_max, shadow };
    let checked = limit.checked();
    checked.map_err(|faults| faults.iter().for_each(|f| section.fault("by", f.to_string()))).ok()
}

/// The facts that parts of keys name.
pub(crate) fn facts_of<'p>(parts: impl Iterator<Item = &'p KeyPart>) -> FactSet {
    let named = |part: &KeyPart| if let KeyPart::Fact(fact) = part { Some(*fact) } else { None };
    parts.filter_map(named).collect()
}

/// The facts that limits and conditions name.
pub(crate) fn facts<'c>(
    limits: &'c [Limit],
    conditions: impl Iterator<Item = &'c Condition>,
) -> FactSet {
    let keys = facts_of(limits.iter().flat_map(|limit| &limit.by));
    let conditions = limits.iter().map(|limit| &limit.when).chain(conditions);
    conditions.fold(keys, |all, condition| all.and(condition.facts()))
}

/// Applies the bound of debts. With the action `queue` a debt stops at the bucket's burst by
/// default, so that a client is back in credit soon after it stops. With other actions a debt has
/// no bound by default.
fn capped(
    unit: LimitUnit,
    algorithm: Algorithm,
    action: LimitAction,
    debt_max: Option<Cost>,
) -> Algorithm {
    let Algorithm::Debt(debt) = algorithm else { return algorithm };
    let burst = (action == LimitAction::Queue).then(|| debt.burst());
    match debt_max.filter(|_| unit == LimitUnit::Cpu).or(burst) {
        Some(debt_max) => Algorithm::Debt(debt.capped(debt_max)),
        None => algorithm,
    }
}

/// Reads the algorithm and its numbers. Exactly one of `share`, `rate` and `window` must be
/// present.
fn counted(
    section: &mut SectionReader<'_, '_>,
    ground: LimitContext<'_>,
) -> Option<(LimitUnit, Algorithm)> {
    let cpus = ground.cpus;
    let share = section.key(&SHARE);
    let rate = section.key(&RATE);
    let window = section.key(&WINDOW);
    let all = ["share", "rate", "window"];
    let named = all.into_iter().filter(|key| section.has(key));
    let named: Vec<_> = named.collect();
    match named.as_slice() {
        [] => section.fault("name", "a limit needs one of `share`, `rate` or `window`"),
        [_] => {}
        [first, rest @ ..] => rest.iter().for_each(|key| {
            section.fault(key, format!("a limit has `{first}` or `{key}`, not both; remove one"));
        }),
    }
    for key in ["max", "round"] {
        if section.has(key) && !section.has("window") {
            let what = format!("belongs to `window`, which is missing; add it, or remove `{key}`");
            section.fault_of(key, what);
        }
    }
    if !section.has("rate") && section.has("unit") {
        section.fault_of("unit", "belongs to `rate`, which is missing; add it, or remove `unit`");
    }
    match (share, rate, window) {
        (Some(share), ..) => Some((LimitUnit::Cpu, by_share(section, share, ground)?)),
        (_, Some(pace), _) => match section.key(&UNIT).unwrap_or(LimitUnit::Hits) {
            LimitUnit::Tokens => by_quota(section, LimitUnit::Tokens, pace, Cost::tokens(1)),
            LimitUnit::Money => by_quota(section, LimitUnit::Money, pace, Cost::hits(1)),
            LimitUnit::Hits | LimitUnit::Cpu => Some((LimitUnit::Hits, by_rate(section, pace))),
        },
        (.., Some(window)) => Some((LimitUnit::Cpu, by_window(section, window, cpus)?)),
        _ => None,
    }
}

fn by_share(
    section: &mut SectionReader<'_, '_>,
    share: CpuShare,
    ground: LimitContext<'_>,
) -> Option<Algorithm> {
    let burst = section.key_or(&BURST, Nanos::from_secs(30));
    Some(Algorithm::Debt(DebtBucket::new(share.of(ground.cpus)?, amount(burst, ground))))
}

/// The cost of this amount of CPU time as the configuration states it.
fn amount(time: Nanos, ground: LimitContext<'_>) -> Cost {
    Cost((time.0 as f64 * ground.amount_cpus) as u64)
}

/// Reads the burst of a rate.
fn by_rate(section: &mut SectionReader<'_, '_>, pace: ExactRate) -> Algorithm {
    let burst = section.key_or(&BURST_REQUESTS, burst_of(pace));
    Algorithm::Debt(DebtBucket::new(pace.rate(), Cost::hits(burst)))
}

/// Default burst of a rate: the number that it names, as 5 of `5/m`, and at least one.
pub(crate) fn burst_of(pace: ExactRate) -> u64 {
    (pace.cost().as_units() as u64).clamp(1, BURST_MAX)
}

/// Reads the burst of a rate in tokens or money; `unit` is the cost of one of them. Default: the
/// amount in the rate.
fn by_quota(
    section: &mut SectionReader<'_, '_>,
    of: LimitUnit,
    pace: ExactRate,
    unit: Cost,
) -> Option<(LimitUnit, Algorithm)> {
    let scaled = |units: f64| Cost((units * unit.0 as f64) as u64);
    let named = pace.cost().as_units();
    let written = section.key(&BURST_REQUESTS);
    let burst = written.map_or(scaled(named), |burst| scaled(burst as f64)).max(Cost(1));
    let rate = Rate::per(scaled(named), pace.period())?;
    Some((of, Algorithm::Quota(QuotaBucket::new(DebtBucket::new(rate, burst)))))
}

fn by_window(section: &mut SectionReader<'_, '_>, window: Nanos, cpus: f64) -> Option<Algorithm> {
    if section.node("burst").is_some() {
        section.fault_of("burst", "cannot be combined with `window`, which has `max`; remove it");
    }
    let round = section.key(&ROUND);
    section.require(&["max"], |_| "a limit needs `max`".to_owned());
    let max = section.key_with("max", |text| cpu_time(text, window, cpus))?;
    let round = Cost::cpu(round.unwrap_or(Nanos::ZERO));
    match SlidingWindow::new(window, Cost::cpu(max)) {
        Ok(sliding) => Some(Algorithm::Sliding(sliding.rounded(round))),
        Err(fault) => {
            section.fault("window", fault.to_string());
            None
        }
    }
}

/// Reads the key template of a limit.
fn by(section: &mut SectionReader<'_, '_>) -> Option<Vec<KeyPart>> {
    if !section.has("by") {
        section.fault("by", "a limit needs `by`; `all` counts all clients together");
    }
    parts(section, &BY)
}

/// Reads the parts of a key: one or several, with at most one IPv4 and one IPv6 network.
pub(crate) fn parts(
    section: &mut SectionReader<'_, '_>,
    row: &'static ListKey<KeyTemplateWord>,
) -> Option<Vec<KeyPart>> {
    let mut networks = (None, None);
    let (key, words) = (row.key().name(), section.key(row));
    let mut parts = Vec::new();
    for word in words {
        let again = match word {
            KeyTemplateWord::V4(bits) => networks.0.replace(bits).is_some(),
            KeyTemplateWord::V6(bits) => networks.1.replace(bits).is_some(),
            KeyTemplateWord::Part(part) => {
                parts.push(part);
                continue;
            }
        };
        if again {
            section.fault_of(key, "names two networks of one kind; remove one");
        } else if networks.0.is_none() || networks.1.is_none() {
            // Reserves the position in the key; the lengths are filled in when both are known.
            parts.push(KeyPart::Ip { v4: 32, v6: 128 });
        }
    }
    for part in &mut parts {
        if let KeyPart::Ip { v4, v6 } = part {
            *v4 = networks.0.unwrap_or(32);
            *v6 = networks.1.unwrap_or(2 * *v4);
        }
    }
    (!parts.is_empty()).then_some(parts)
}

/// The coarsest `round` of a window limit.
const ROUND_MAX: Nanos = Nanos::from_secs(1);
/// Least and greatest `weight`. Beyond them a class almost shuts out the others, or is shut out.
pub(crate) const WEIGHTS: (Weight, Weight) = (Weight::new(10), Weight::new(100_000));

/// The words for each action.
pub(crate) const ACTIONS: [(&str, LimitAction); 4] = [
    ("queue", LimitAction::Queue),
    ("hold", LimitAction::Hold),
    ("delay", LimitAction::Delay),
    ("reject", LimitAction::Reject),
];

/// The word for refusing each request.
const DENY: &str = "deny";

/// The words for each action of a limit; `None` for `deny`.
static LIMIT_ACTIONS: [(&str, Option<LimitAction>); 5] = [
    ("queue", Some(LimitAction::Queue)),
    ("hold", Some(LimitAction::Hold)),
    ("delay", Some(LimitAction::Delay)),
    ("reject", Some(LimitAction::Reject)),
    (DENY, None),
];

/// The row of a number of keys.
pub(crate) const fn keys_max() -> ConfigKey<usize> {
    ConfigKey::whole("keys_max")
        .within(1, KEYS_MAX)
        .low("the smallest debts are evicted early")
        .high("memory")
        .example("65536")
}

pub(crate) fn quantity(error: QuantityParseError) -> String {
    error.to_string()
}

/// Reads a share. A number without a unit is probably one in percent.
fn share(text: &str) -> Read<CpuShare> {
    text.parse().map_err(|error| match count(text) {
        Ok(1..=100) => format!("not a share; write {text}%"),
        _ => quantity(error),
    })
}

/// Reads a rate.
fn rate(text: &str) -> Read<ExactRate> {
    text.parse().map_err(|error| match count(text) {
        Ok(1..=BURST_MAX) => format!("not a rate; write {text}/s, {text}/m or {text}/h"),
        _ if text.starts_with("0/") => {
            "must be above 0; a limit with `action: deny` and a `when` refuses requests".to_owned()
        }
        _ => quantity(error),
    })
}

/// Reads CPU time, either as a duration or as a share of what `cpus` provide within the window.
pub(crate) fn cpu_time(text: &str, window: Nanos, cpus: f64) -> Read<Nanos> {
    if let Ok(share) = text.parse::<CpuShare>() {
        return Ok(Nanos::from_secs_f64(share.fraction() * cpus * window.as_secs_f64()));
    }
    let long = |_| "not CPU time or a share; write 1050ms or 7%".to_owned();
    within(text.parse().map_err(|_| ()).map_err(long)?, Nanos::from_millis(1)..=DAY)
}

/// Reads a burst in requests, at least 1.
pub(crate) fn requests_saved(text: &str) -> Read<u64> {
    let told = |why| match values::duration(text) {
        Ok(_) => "with a `rate` it is a number of requests, not a time".to_owned(),
        Err(_) => why,
    };
    match count(text).map_err(told)? {
        0 => Err("with 0 no request could pass: the minimum is 1, which allows no burst, like \
                  nginx's `burst=0`"
            .to_owned()),
        burst => within(burst, 1..=BURST_MAX),
    }
}
