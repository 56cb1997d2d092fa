//! Conditions on requests (`when`), and groups: conditions with names.
//!
//! A condition is the same everywhere: in limits, in `exempt`, in gatekeepers and in groups. Groups
//! are read first, those of files before those of the configuration; a group may name groups before
//! it, so there are no circles. How a condition is evaluated: `evenkeel_core::condition`.

pub(crate) mod doubts;
mod words;

use crate::address;
use crate::fault::{ConfigFault, ConfigFaults, nearest, quoted};
use crate::keys::{ConfigKey, ListKey, SubsectionKey, section};
use crate::reader::SectionReader;
use crate::source::included::{self, IncludedFile};
use crate::tree::{self, YamlNode, YamlValue};
use crate::values::{self, Read, header_name, token};
use crate::variables;
use evenkeel_core::classify::{host_name, normal_path};
use evenkeel_core::condition::patterns::{EXPRESSION, PathPatterns, PatternError, Patterns};
use evenkeel_core::condition::{
    AddressSet, Clause, Condition, GROUP_CLAUSES_MAX, GROUPS_MAX, Group, Values,
};
use evenkeel_core::fact::ClientFact;
use ipnet::IpNet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

section! {
    CONDITION = "proxy.limits.when":
        METHOD, PATH, QUERY, VHOST, USER_AGENT, HEADER, COOKIE, IP, IP_FILE, ASN, COUNTRY, JA4, H2,
        RTT, FETCH, BOT, IMPOSTOR, GROUP, NOT, ANY;
}

section! {
    FILE = "groups": GROUPS;
}

section! {
    /// Files with groups, at most 64. Each contains names with conditions, like `groups`. Files
    /// that change are read again without a restart.
    GROUP_FILES: ListKey<PathBuf> = ConfigKey::path("group_files").list()
        .default_note("none").example("/etc/evenkeel/ai-crawlers.yaml");
    /// Names for conditions, to which other conditions refer with `group`. If the value is a list,
    /// one condition of it must match.
    GROUPS: SubsectionKey = SubsectionKey::named("groups", &CONDITION);
    /// Methods, in upper or lower case. Methods that are not in IANA's registry need a pattern.
    METHOD: ListKey<Box<str>> =
        ConfigKey::text("method", words::method).list().default_note("any").example("POST");
    /// Paths; each includes all paths below it. `*/NAME` is this name in any folder. A path also
    /// matches in other spellings that a backend may treat as the same
    /// ([details](limits.md#what-a-condition-sees)).
    PATH: ListKey<Box<str>> =
        ConfigKey::text("path", path).list().default_note("any").example("/login");
    /// Parameters of the query: names that must be present, or names with patterns for their
    /// values.
    QUERY: ListKey<Box<str>> =
        ConfigKey::text("query", parameter).list().or_map().default_note("any").example("diff");
    /// Host names without a port.
    VHOST: ListKey<Box<str>> =
        ConfigKey::text("vhost", vhost).list().default_note("any").example("www.example.com");
    /// The value of the header `User-Agent`; `absent` if there is none.
    USER_AGENT: ListKey<Box<str>> =
        ConfigKey::text("user_agent", pattern).list().default_note("any").example("*GPTBot*");
    /// Headers: names that must be present, or names with patterns for their values.
    HEADER: ListKey<Box<str>> = ConfigKey::text("header", header_name).list().or_map()
        .default_note("any").example("authorization");
    /// Cookies: names that must be present, or names with patterns for their values.
    COOKIE: ListKey<Box<str>> =
        ConfigKey::text("cookie", token).list().or_map().default_note("any").example("session");
    /// Networks; the client's address must be in one of them.
    IP: ListKey<IpNet> =
        ConfigKey::text("ip", address::network).list().default_note("any").example("192.0.2.0/24");
    /// Files with networks; the client's address must be in one of them. A file is JSON as
    /// published in [address lists](networks.md#address-lists), or a text with one network on each
    /// line. An empty file matches no address. Files that change are read again without a restart.
    /// With `ip`, the address must be in both.
    IP_FILE: ListKey<PathBuf> = ConfigKey::path("ip_file").list()
        .default_note("any").example("/etc/evenkeel/offices.txt");
    /// Autonomous systems, such as `AS64500`; `absent` if the address is in none.
    ASN: ListKey<Box<str>> =
        ConfigKey::text("asn", asn).list().default_note("any").example("AS64500");
    /// Countries, two letters each; `absent` if it is unknown.
    COUNTRY: ListKey<Box<str>> =
        ConfigKey::text("country", words::country).list().default_note("any").example("DE");
    /// JA4 fingerprints; `absent` without TLS.
    JA4: ListKey<Box<str>> =
        ConfigKey::text("ja4", pattern).list().default_note("any").example("t13d1516h2_*");
    /// Fingerprints of HTTP/2 connections; `absent` with HTTP/1.1.
    H2: ListKey<Box<str>> =
        ConfigKey::text("h2", pattern).list().default_note("any").example("*m,a,s,p");
    /// How the client is connected: `direct` or `relayed`; `absent` if it is unknown.
    RTT: ListKey<Box<str>> =
        ConfigKey::text("rtt", words::rtt).list().default_note("any").example("relayed");
    /// Whether the headers fit the browser named in `User-Agent`: `agrees`, `differs`, or `other`
    /// if it names no browser; `absent` at listeners that do not compare.
    FETCH: ListKey<Box<str>> =
        ConfigKey::text("fetch", words::fetch).list().default_note("any").example("differs");
    /// Robots that have proven their identity, by name; `absent` for all other clients.
    BOT: ListKey<Box<str>> =
        ConfigKey::text("bot", pattern).list().default_note("any").example("googlebot");
    /// Robots that the client claims to be without proof, by name.
    IMPOSTOR: ListKey<Box<str>> =
        ConfigKey::text("impostor", pattern).list().default_note("any").example("*");
    /// [Groups](#groups); the request must belong to one of them.
    GROUP: ListKey<Box<str>> =
        ConfigKey::text("group", values::name).list().default_note("any").example("ai_crawlers");
    /// A condition that must not match.
    NOT: SubsectionKey = SubsectionKey::one("not", &CONDITION);
    /// Conditions; one of them must match.
    ANY: SubsectionKey = SubsectionKey::list("any", &CONDITION);
}

/// The word for an attribute that a request does not have.
const ABSENT: &str = "absent";
/// Maximum size of a file with groups, in bytes.
const GROUP_BYTES_MAX: u64 = tree::CONFIGURATION.bytes_max as u64;

/// The groups of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSettings {
    /// All groups, in the order of their indexes.
    pub groups: Vec<Arc<Group>>,
    /// The files that were read.
    pub files: Vec<IncludedFile>,
    /// Whether groups are missing because of a fault that has been reported, or because a file of
    /// groups is checked alone. Then unknown names are no faults of their own.
    pub is_incomplete: bool,
    /// The names of the robots, which conditions may name.
    robots: Vec<String>,
}

/// Reads the groups of the files and those of the configuration.
pub(crate) fn groups(root: &mut SectionReader<'_, '_>) -> GroupSettings {
    let mut settings = GroupSettings { robots: robots(root), ..GroupSettings::default() };
    for path in root.key(&GROUP_FILES) {
        match included::read(&path, GROUP_BYTES_MAX) {
            Ok((bytes, read)) => {
                let faults = file(&path, tree::parse(&bytes), &mut settings);
                let (warnings, faults) = split(faults);
                settings.is_incomplete |= !faults.faults.is_empty();
                for what in faults.to_string().lines() {
                    root.fault(GROUP_FILES.name(), what);
                }
                let place = root.place_of(GROUP_FILES.name());
                warnings.to_string().lines().for_each(|what| root.warn(place, what));
                settings.files.push(read);
            }
            Err(why) => {
                settings.is_incomplete = true;
                root.fault(GROUP_FILES.name(), why);
            }
        }
    }
    add(root, &mut settings);
    settings
}

/// The names of the robots of the proxy as they are written.
fn robots(root: &SectionReader<'_, '_>) -> Vec<String> {
    let listed = root.node("proxy").and_then(|proxy| proxy.find(&["robots"]));
    let listed = listed.map_or(&[][..], YamlNode::items);
    let names = listed.iter().filter_map(|robot| robot.find(&["name"])?.as_text());
    names.map(str::to_owned).collect()
}

/// Splits faults into warnings and others.
fn split(all: ConfigFaults) -> (ConfigFaults, ConfigFaults) {
    let (warnings, faults) = all.faults.into_iter().partition(|fault| fault.is_warning);
    (ConfigFaults::new(&all.file, warnings), ConfigFaults::new(&all.file, faults))
}

/// Adds the groups of a file. Returns its faults with their places.
fn file(
    path: &Path,
    root: Result<YamlNode, ConfigFault>,
    groups: &mut GroupSettings,
) -> ConfigFaults {
    let mut faults: Vec<ConfigFault> = Vec::new();
    match root {
        Ok(mut root) => {
            faults.extend(variables::expand(&mut root));
            let (root, heading) = below_heading(root);
            faults.extend(heading);
            let root = YamlNode::map([(GROUPS.name(), root)]);
            let mut section = SectionReader::open("", &FILE, Some(&root), root.place, &mut faults);
            add(&mut section, groups);
        }
        Err(fault) => faults.push(fault),
    }
    ConfigFaults::new(&path.display().to_string(), faults)
}

/// Checks a file of groups by itself, without the groups that it may name of other files. Returns
/// the number of its groups, or its faults. `None` if it is not such a file: at least one of its
/// sections has a key of a condition, and none is a section of a configuration (`is_section`).
pub(crate) fn check_file(
    path: &Path,
    is_section: impl Fn(&str) -> bool,
) -> Option<Result<usize, ConfigFaults>> {
    let (bytes, _) = included::read(path, GROUP_BYTES_MAX).ok()?;
    let root = tree::parse(&bytes).ok()?;
    let YamlValue::Map(entries) = &root.value else { return None };
    if entries.iter().any(|(name, _)| is_section(&name.name)) {
        return None;
    }
    let has_condition = |node: &YamlNode| match &node.value {
        YamlValue::Map(keys) => keys.iter().any(|(key, _)| CONDITION.row(&key.name).is_some()),
        _ => false,
    };
    let is_group = |node: &YamlNode| match &node.value {
        YamlValue::List(nodes) => nodes.iter().any(has_condition),
        _ => has_condition(node),
    };
    if !entries.iter().any(|(_, node)| is_group(node)) {
        return None;
    }
    let mut groups = GroupSettings { is_incomplete: true, ..GroupSettings::default() };
    let (_, faults) = split(file(path, Ok(root), &mut groups));
    Some(if faults.faults.is_empty() { Ok(groups.groups.len()) } else { Err(faults) })
}

/// The groups of a file that has them below `groups`, as a configuration has, with the fault; any
/// other file as it is.
fn below_heading(root: YamlNode) -> (YamlNode, Option<ConfigFault>) {
    let heading = match &root.value {
        YamlValue::Map(entries) => entries.iter().find(|(key, _)| *key.name == *GROUPS.name()),
        _ => None,
    };
    let Some((key, groups)) = heading else { return (root, None) };
    let what = "a file of `group_files` has the names of groups at its left margin; remove this \
                line, and indent the others less";
    (groups.clone(), Some(ConfigFault::new(key.place, what)))
}

/// Adds the groups of a section. Each may name those before it. Of a list of conditions one must
/// hold.
fn add(section: &mut SectionReader<'_, '_>, groups: &mut GroupSettings) {
    let read = |section: &mut SectionReader<'_, '_>, groups: &GroupSettings| {
        if section.is_blank() {
            let what = "a group must not be empty; write what its requests have in common";
            section.fault("", what);
        }
        when(section, groups)
    };
    section.named_with(&GROUPS, groups, read, |groups, name, mut conditions| {
        let name = values::name(name).map_err(|why| format!("{}: {why}", quoted(name)))?;
        let groups = &mut groups.groups;
        if groups.iter().any(|group| group.name == name) {
            return Err(format!("two groups are named `{name}`; rename one"));
        }
        let index = u8::try_from(groups.len()).ok().filter(|at| usize::from(*at) < GROUPS_MAX);
        let index = index.ok_or_else(|| format!("more than {GROUPS_MAX} groups; remove some"))?;
        let condition = match conditions.len() {
            0 => return Err(format!("the group `{name}` has no condition")),
            1 => conditions.remove(0),
            _ => Condition { clauses: vec![Clause::Any(conditions)] },
        };
        let group = Group::new(name.clone(), index, condition).ok_or_else(|| {
            format!(
                "the group `{name}` has more than {GROUP_CLAUSES_MAX} conditions, with those of \
                 the groups that it names; name each of these once"
            )
        })?;
        groups.push(Arc::new(group));
        Ok(())
    });
}

/// Reads a condition, which may name `groups`. A key without a value is a fault: it may be a list
/// whose entries are commented out, and without it the condition would hold for all requests.
pub(crate) fn when(section: &mut SectionReader<'_, '_>, groups: &GroupSettings) -> Condition {
    section.refuse_empty();
    let mut clauses = Vec::new();
    let method = compiled(section, &METHOD, Patterns::new);
    clauses.extend(method.map(Clause::Method));
    let networks = section.key(&IP);
    if !networks.is_empty() {
        let networks = networks.iter().map(|net| (net.addr(), net.prefix_len()));
        clauses.push(Clause::Address(AddressSet::new(networks)));
    }
    let lists: Vec<Box<str>> =
        section.key(&IP_FILE).iter().map(|path| path.to_string_lossy().into()).collect();
    if !lists.is_empty() {
        clauses.push(Clause::Listed(lists));
    }
    clauses.extend(compiled(section, &VHOST, Patterns::new).map(Clause::Vhost));
    clauses.extend(compiled(section, &PATH, PathPatterns::new).map(Clause::Path));
    let agent = values_of(section, &USER_AGENT);
    clauses.extend(agent.map(|values| Clause::Header("user-agent".into(), values)));
    named_values(section, &HEADER, header_name, Clause::Header, &mut clauses);
    named_values(section, &COOKIE, token, Clause::Cookie, &mut clauses);
    named_values(section, &QUERY, parameter, Clause::Query, &mut clauses);
    for (fact, row) in FACTS {
        if matches!(fact, ClientFact::Bot | ClientFact::Impostor) {
            words::refuse_unknown_robots(section, row.name(), groups);
        }
        clauses.extend(values_of(section, row).map(|values| Clause::Fact(fact, values)));
    }
    clauses.extend(group_clause(section, groups));
    if section.has("not") {
        clauses.push(Clause::Not(section.section(&NOT, |inner| when(inner, groups))));
    }
    clauses.extend(any_clause(section, groups));
    doubts::warn(section, &clauses);
    Condition { clauses }
}

/// Reads the condition of a rule, which applies to all requests without one.
pub(crate) fn of_rule(
    section: &mut SectionReader<'_, '_>,
    key: &'static SubsectionKey,
    groups: &GroupSettings,
) -> Condition {
    if section.written(key.name()) && section.node(key.name()).is_none_or(YamlNode::is_empty) {
        section.fault_of(key.name(), "is empty; remove the key, or write a condition");
    }
    section.section(key, |inner| when(inner, groups))
}

/// Reads the conditions, one of which must hold.
fn any_clause(section: &mut SectionReader<'_, '_>, groups: &GroupSettings) -> Option<Clause> {
    let node = section.node(ANY.name()).filter(|node| !node.is_empty())?;
    if let YamlValue::Map(keys) = &node.value
        && let [(first, _), .., (last, _)] = keys.as_slice()
    {
        let what = format!(
            "is a list of conditions, and this is one condition, all keys of which must match; \
             write a list: `any: [{{{0}: ...}}, {{{1}: ...}}]`",
            first.name, last.name
        );
        section.fault_of(ANY.name(), what);
    }
    let mut is_blank = false;
    let nodes = section.nodes_of(&ANY)?;
    let all = section.sections(&ANY, nodes, |inner| {
        is_blank |= inner.is_blank();
        when(inner, groups)
    });
    if is_blank {
        section.fault_of(ANY.name(), "has an empty condition; remove it");
    }
    Some(Clause::Any(all))
}

/// The files of address lists that a condition names.
pub(crate) fn ip_files(condition: &Condition) -> Vec<PathBuf> {
    condition.lists().iter().map(|name| PathBuf::from(&**name)).collect()
}

/// The facts and their rows.
const FACTS: [(ClientFact, &ListKey<Box<str>>); 8] = [
    (ClientFact::Asn, &ASN),
    (ClientFact::Country, &COUNTRY),
    (ClientFact::Ja4, &JA4),
    (ClientFact::H2, &H2),
    (ClientFact::Rtt, &RTT),
    (ClientFact::Fetch, &FETCH),
    (ClientFact::Bot, &BOT),
    (ClientFact::Impostor, &IMPOSTOR),
];

/// Reads a list of patterns. `None` if there are none.
pub(crate) fn compiled<T>(
    section: &mut SectionReader<'_, '_>,
    row: &'static ListKey<Box<str>>,
    compile: impl Fn(Vec<Box<str>>) -> Result<T, PatternError>,
) -> Option<T> {
    let patterns = section.key(row);
    if patterns.is_empty() {
        return None;
    }
    compile(patterns).map_err(|fault| section.fault_of(row.name(), too_large(&fault))).ok()
}

/// Reads the patterns of an attribute that may be absent. `None` if there are none.
fn values_of(
    section: &mut SectionReader<'_, '_>,
    row: &'static ListKey<Box<str>>,
) -> Option<Values> {
    let texts = section.key(row);
    if texts.is_empty() {
        return None;
    }
    values(texts).map_err(|fault| section.fault_of(row.name(), too_large(&fault))).ok()
}

fn values(texts: Vec<Box<str>>) -> Result<Values, PatternError> {
    let absent = texts.iter().any(|text| **text == *ABSENT);
    let patterns = Patterns::new(texts.into_iter().filter(|text| **text != *ABSENT))?;
    Ok(Values { absent, patterns })
}

/// A list whose patterns are valid one by one can only be too large as a whole.
fn too_large(fault: &PatternError) -> String {
    format!("has patterns that are {fault}")
}

/// Reads names that a request must have, or names with patterns of their values.
fn named_values(
    section: &mut SectionReader<'_, '_>,
    row: &'static ListKey<Box<str>>,
    name: impl Fn(&str) -> Read<Box<str>>,
    clause: impl Fn(Box<str>, Values) -> Clause,
    clauses: &mut Vec<Clause>,
) {
    let Some(named) = section.map_with(row.name(), name, pattern) else {
        let present = section.key(row).into_iter();
        return clauses.extend(present.map(|name| clause(name, Values::present())));
    };
    for (name, texts) in named {
        match values(texts) {
            Ok(values) => clauses.push(clause(name, values)),
            Err(fault) => section.fault_of(row.name(), too_large(&fault)),
        }
    }
}

/// Reads the groups, one of which a request must belong to.
fn group_clause(section: &mut SectionReader<'_, '_>, groups: &GroupSettings) -> Option<Clause> {
    let mut named = Vec::new();
    for name in section.key(&GROUP) {
        match groups.groups.iter().find(|group| group.name == name) {
            Some(group) => named.push(Clause::Group(Arc::clone(group))),
            None if groups.is_incomplete => {}
            None => {
                let known: Vec<&str> = groups.groups.iter().map(|group| &*group.name).collect();
                let hint = match nearest(&name, &known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if known.is_empty() => "`groups` names none before it".to_owned(),
                    None => format!("known are {}", known.join(", ")),
                };
                section.fault_of("group", format!("names no group: {}; {hint}", quoted(&name)));
            }
        }
    }
    match named.len() {
        0 | 1 => named.pop(),
        _ => {
            let alone = |clause| Condition { clauses: vec![clause] };
            Some(Clause::Any(named.into_iter().map(alone).collect()))
        }
    }
}

/// Reads a pattern: text with `*`, or `re:` and a regular expression.
pub(crate) fn pattern(text: &str) -> Read<Box<str>> {
    Patterns::new([text]).map_err(|fault| fault.what)?;
    Ok(text.into())
}

/// Reads the name of a parameter of a query.
fn parameter(text: &str) -> Read<Box<str>> {
    let is_name = !text.is_empty() && text.len() <= 255 && !text.contains(['=', '&', '*']);
    is_name.then(|| text.into()).ok_or_else(|| {
        "the name of a parameter; a value is written as `query: {NAME: PATTERN}`".to_owned()
    })
}

fn asn(text: &str) -> Read<Box<str>> {
    let number = text.strip_prefix("AS").or(text.strip_prefix("as")).unwrap_or(text);
    match number.parse::<u32>() {
        _ if text == ABSENT => Ok(text.into()),
        Ok(number) => Ok(format!("AS{number}").into()),
        Err(_) => Err("the number of an autonomous system, such as AS64500".to_owned()),
    }
}

pub(crate) fn path(text: &str) -> Read<Box<str>> {
    if text.starts_with(EXPRESSION) {
        return pattern(text);
    }
    if text.contains(['?', '#']) {
        return Err("a path begins with / and has no query; write `query: {NAME: \"*\"}` for a \
                    parameter"
            .to_owned());
    }
    if !text.starts_with(['/', '*']) {
        return Err("a path begins with / or *, as in /login or *.php".to_owned());
    }
    if text.contains(';') {
        return Err("a path is compared without `;parameters`".to_owned());
    }
    // `*/a` is `/a` in any folder, also in the first one.
    let (start, text) = match text.trim_start_matches('*') {
        rest if rest.len() < text.len() && rest.starts_with('/') => ("*", rest),
        _ => ("", text),
    };
    let mut kept: Vec<&str> = Vec::new();
    for segment in text.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            ".." => _ = kept.pop(),
            segment => kept.push(segment),
        }
    }
    // A path matches with all paths below it, so `/a/*` is `/a`, which is also the path `/a/`.
    if kept.last() == Some(&"*") {
        kept.pop();
    }
    let path = normal_path(&kept.join("/")).into_owned();
    if path == "/.." {
        return Err("a path has no encoded `..`".to_owned());
    }
    Ok(match &*path {
        "/" => path.into(),
        _ => format!("{start}{path}").into(),
    })
}

fn vhost(text: &str) -> Read<Box<str>> {
    if text.starts_with(EXPRESSION) {
        return pattern(text);
    }
    let v6 = text.starts_with('[') && text.ends_with(']');
    if text.is_empty() || (text.contains([':', '/']) && !v6) {
        return Err("a host name without a port, such as www.example.com".to_owned());
    }
    Ok(host_name(text).to_ascii_lowercase().into())
}
