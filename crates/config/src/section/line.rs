//! The `line` section: where the line door listens, and how tags are counted.
//!
//! The section's own numbers are the limit of all tags that match no prefix. The settings are
//! described in `settings`. How limits count: `evenkeel_core::bucket`.

pub mod limits_file;

use super::std_time;
use crate::reader::SectionReader;
use crate::rows::line::{self as rows, burst_of};
use crate::settings::LineSettings;
use crate::settings::tags::{
    LimitsFile, OWN_NUMBERS_LIMIT_NAME, RateNumbers, Refill, SHARED_LIMIT_NAME, TagRule,
    TagRulesBuilder, owed_time,
};
use evenkeel_core::limit::{LIMITS_MAX, Limit};

/// Default of `keys_max`; 24 bytes per key.
const KEYS_DEFAULT: usize = 262_144;
/// Maximum number of addresses of the door.
const LISTENERS_MAX: usize = 64;
/// Maximum number of prefixes with tables of their own. The other three tables are for tags without
/// a prefix, for keys with their own numbers, and the one that all further prefixes share.
const OWN_MAX: usize = LIMITS_MAX - 3;

/// Reads the section. `keys_default` is `state.keys_max`.
pub fn read(line: &mut SectionReader<'_, '_>, keys_default: Option<usize>) -> LineSettings {
    let listen = line.key(&rows::LISTEN);
    let socket_mode = line.key(&rows::SOCKET_MODE).0;
    let resp = line.key(&rows::RESP);
    if listen.len() + resp.len() > LISTENERS_MAX {
        line.fault("listen", format!("more than {LISTENERS_MAX} listeners; remove some"));
    }
    let tag_bytes = line.key(&rows::TAG_BYTES);
    let connections = line.key(&rows::CONNECTIONS);
    let drain = std_time(line.key(&rows::DRAIN));
    let rate = line.key(&rows::RATE);
    let burst = line.key(&rows::BURST);
    let refill = line.key(&rows::REFILL);
    let keys_max = line.key_or(&rows::KEYS, keys_default.unwrap_or(KEYS_DEFAULT));
    let shadow = line.key(&rows::SHADOW);
    let rest = RateNumbers { pace: rate.1, burst, refill };
    let mut tags = TagLimitsReader { refill, keys_max, ..TagLimitsReader::default() };
    tags.limits.push(rest.limit("line".into(), keys_max));
    tags.rules.add("", TagRule::Own(0));
    let limits_file = line.key(&rows::LIMITS_FILE);
    let limits_file = limits_file.map(|path| LimitsFile { path, refill });
    tags.read(line, limits_file.is_some());
    for prefix in line.key(&rows::EXEMPT) {
        if tags.rules.has(&prefix) {
            line.fault("exempt", format!("the prefix `{prefix}` has a rule already; remove one"));
        }
        tags.rules.add(&prefix, TagRule::Exempt);
    }
    let TagLimitsReader { mut limits, rules: written, .. } = tags;
    limits.iter_mut().for_each(|limit| limit.shadow |= shadow);
    let rules = written.clone().finish();
    LineSettings {
        listen,
        socket_mode,
        resp,
        tag_bytes,
        keys_max,
        connections,
        drain,
        limits,
        written,
        limits_file,
        rules,
    }
}

/// The limits and prefix rules read so far.
struct TagLimitsReader {
    limits: Vec<Limit>,
    rules: TagRulesBuilder,
    /// Default for limits without these keys.
    refill: Refill,
    keys_max: usize,
}

impl Default for TagLimitsReader {
    fn default() -> TagLimitsReader {
        TagLimitsReader {
            limits: Vec::new(),
            rules: TagRulesBuilder::default(),
            refill: Refill::Grid,
            keys_max: KEYS_DEFAULT,
        }
    }
}

impl TagLimitsReader {
    /// Reads `limits`. If there are more limits than own tables, those without a name share one; so
    /// do the limits of a file.
    fn read(&mut self, line: &mut SectionReader<'_, '_>, file: bool) {
        let nodes = line.nodes_of(&rows::LIMITS).unwrap_or_default();
        let shared = nodes.len() > OWN_MAX;
        if !nodes.is_empty() {
            line.sections(&rows::LIMITS, nodes, |section| self.limit(section, shared));
        }
        if self.limits.len() > 1 + OWN_MAX {
            let what = format!(
                "{} limits have a `name`; at most {OWN_MAX} can have one, the others share the \
                 limit `{SHARED_LIMIT_NAME}`",
                self.limits.len() - 1
            );
            line.fault("limits", what);
        }
        if shared || file {
            self.limits.push(owed_time(SHARED_LIMIT_NAME, self.keys_max));
        }
    }

    fn limit(&mut self, section: &mut SectionReader<'_, '_>, shared: bool) {
        for key in ["prefix", "rate"] {
            if !section.has(key) {
                section.fault(key, format!("a limit of the line door needs `{key}`"));
            }
        }
        let prefix = section.key(&rows::LIMIT_PREFIX);
        let shared = shared && !section.has("name");
        let own = match shared {
            true => self.reject_own_keys(section),
            false => Some(self.read_own_table(section, prefix.as_deref())),
        };
        let rate = section.key(&rows::LIMIT_RATE);
        let saved = rate.as_ref().map_or(1, |rate| burst_of(rate.1));
        let burst = section.key_or(&rows::LIMIT_BURST, saved);
        let refill = section.key_or(&rows::LIMIT_REFILL, self.refill);
        let (Some(prefix), Some(rate)) = (prefix, rate) else { return };
        if self.rules.has(&prefix) {
            section.fault("prefix", format!("two limits have the prefix `{prefix}`; remove one"));
            return;
        }
        let numbers = RateNumbers { pace: rate.1, burst, refill };
        match own {
            Some((name, keys_max, shadow)) => {
                self.rules.add(&prefix, TagRule::Own(self.limits.len() as u8));
                self.limits.push(Limit { shadow, ..numbers.limit(name, keys_max) });
            }
            None => self.rules.add_shared(&prefix, numbers),
        }
    }

    /// Reads the keys of a limit with its own table: name, number of keys, and whether it is in
    /// shadow mode.
    fn read_own_table(
        &self,
        section: &mut SectionReader<'_, '_>,
        prefix: Option<&str>,
    ) -> (Box<str>, usize, bool) {
        let named = named(prefix.unwrap_or("?"));
        let name = section.key_or(&rows::LIMIT_NAME, named.into_boxed_str());
        let keys_max = section.key_or(&rows::LIMIT_KEYS, self.keys_max);
        let shadow = section.key(&rows::LIMIT_SHADOW).unwrap_or(false);
        if [SHARED_LIMIT_NAME, OWN_NUMBERS_LIMIT_NAME].contains(&&*name)
            || self.limits.iter().any(|other| other.name == name)
        {
            let what = format!("two limits are named `{name}`; give one of them another `name`");
            section.fault(if section.has("name") { "name" } else { "prefix" }, what);
        }
        (name, keys_max, shadow)
    }

    fn reject_own_keys<T>(&self, section: &mut SectionReader<'_, '_>) -> Option<T> {
        for key in ["keys_max", "shadow"] {
            if section.has(key) {
                let what = format!(
                    "needs a `name` here: with more than {OWN_MAX} limits, those without a name \
                     share the limit `{SHARED_LIMIT_NAME}`"
                );
                section.fault_of(key, what);
            }
        }
        None
    }
}

/// Default name of a limit: its prefix, with invalid characters replaced by `-`.
fn named(prefix: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = prefix.chars().map(|c| if plain(c) { c } else { '-' }).take(64).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "prefix".to_owned() } else { name.to_owned() }
}
