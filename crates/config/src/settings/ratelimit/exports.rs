//! The `ratelimit.statsd` and `ratelimit.prometheus` sections: metrics as the reference has them.
//!
//! Rules that rename metrics are described in `settings::rename`.

use super::{host_port, path, tag, time};
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::{SectionReader, settings};
use crate::settings::pattern::NameRegex;
use crate::settings::pattern::rename::{MetricRename, NameTemplate};
use crate::tree::{YamlNode, YamlValue};
use crate::values::Read;
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// A StatsD server, and how metrics are sent to it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RatelimitStatsd from statsd(section), STATSD = "ratelimit.statsd";

    /// `host:port` of the server.
    pub address: String, ADDRESS: DefaultedKey<String> =
        ConfigKey::text("address", host_port).default_with(|| "localhost:8125".to_owned());
    /// Whether metrics are sent over UDP, not TCP.
    pub udp: bool, UDP: DefaultedKey<bool> = ConfigKey::truth("udp").default(false);
    /// Whether the server understands tags, as DogStatsD does.
    pub dog: bool, DOGSTATSD: DefaultedKey<bool> = ConfigKey::truth("dogstatsd").default(false);
    /// Time between two messages.
    pub every: Duration, EVERY: DefaultedKey<Nanos> = time("every").default(Nanos::from_secs(10));
    /// Tags of all metrics, as `key:value`.
    pub tags: Vec<(String, String)>, TAGS: ListKey<(String, String)> =
        ConfigKey::opaque("tags", tag).list().example("zone:eu-1");
    /// Sections with `match`, `name` and `tags`; the [first that matches](ratelimit.md#metrics)
    /// applies.
    pub rename: Vec<MetricRename>, RENAME: SubsectionKey = SubsectionKey::list("rename", &RENAMES)
        => renames(section);
}

settings! {
    /// The port that Prometheus scrapes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PrometheusSettings from prometheus(section), PROMETHEUS = "ratelimit.prometheus";

    /// Address to listen on.
    pub listen: SocketAddr, LISTEN: DefaultedKey<SocketAddr> =
        ConfigKey::text("listen", address::listen)
            .default_with(|| SocketAddr::from(([0, 0, 0, 0], 9090)));
    /// Path of the metrics.
    pub path: String, PATH: DefaultedKey<String> =
        ConfigKey::text("path", url_path).default_with(|| "/metrics".to_owned());
    /// A [mapping file](ratelimit.md#metrics), read at the start.
    pub mapper: Option<PathBuf>, MAPPER: ConfigKey<PathBuf> =
        ConfigKey::opaque("mapper", path).example("/etc/evenkeel/mapping.yaml");
}

section! {
    RENAMES = "ratelimit.statsd.rename";

    /// A regular expression for the names of metrics.
    MATCH: ConfigKey<NameRegex> =
        ConfigKey::text("match", NameRegex::new).required().example("ratelimit\\.service\\.(.*)");
    /// The new name, in which `$1` is the text of the first group.
    NAME: ConfigKey<String> =
        ConfigKey::opaque("name", |text| Ok(text.to_owned())).required().example("service.$1");
    /// Tags of the renamed metric, as `key:value`, in which `$1` is the text of the first group.
    NEW_TAGS: ListKey<(String, String)> =
        ConfigKey::opaque("tags", tag).list().example("domain:$1");
}

/// Reads `rename: [{match: REGEX, name: TEXT, tags: [key:text]}]`.
fn renames(section: &mut SectionReader<'_, '_>) -> Vec<MetricRename> {
    let nodes: &[YamlNode] = match section.node("rename").map(|node| &node.value) {
        None => return Vec::new(),
        Some(YamlValue::List(nodes)) => nodes,
        Some(_) => {
            section.fault_of("rename", "must be a list of sections: match, name, tags");
            return Vec::new();
        }
    };
    let rules = section.sections(&RENAME, nodes, |rule| {
        rule.require(&["match", "name"], |key| format!("`rename` needs `{key}`"));
        let pattern = rule.key(&MATCH);
        let template = |text: &str| match &pattern {
            Some(pattern) => NameTemplate::new(text, pattern).map(Some),
            None => Ok(None),
        };
        let name = rule.key_with("name", template).flatten();
        let tags = rule.list_with("tags", |text| {
            let (key, text) = tag(text)?;
            Ok(template(&text)?.map(|template| (key, template)))
        });
        let tags = tags.into_iter().flatten().collect();
        Some(MetricRename { name: Some(name?), pattern: pattern?, tags })
    });
    rules.into_iter().flatten().collect()
}

fn url_path(text: &str) -> Read<String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path begins with /".to_owned()),
    }
}
