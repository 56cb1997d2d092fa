//! The `ratelimit.statsd` and `ratelimit.prometheus` sections: metrics as the reference has them.
//!
//! Rules that rename metrics are described in `settings::rename`.

use super::{host_port, path, tag, time};
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::SectionReader;
use crate::settings::pattern::NameRegex;
use crate::settings::pattern::rename::{MetricRename, NameTemplate};
use crate::tree::{YamlNode, YamlValue};
use crate::values::{Read, std_time};
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A StatsD server, and how metrics are sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatelimitStatsd {
    /// Host and port, resolved at each connect.
    pub address: String,
    /// `true`: UDP datagrams. `false`: a TCP connection.
    pub udp: bool,
    /// Whether tags have the format of `DogStatsD`.
    pub dog: bool,
    /// Interval between two messages.
    pub every: Duration,
    /// Tags that are added to every metric, as key and value.
    pub tags: Vec<(String, String)>,
    /// Rules that rename metrics and turn parts of their names into tags. The first match applies.
    pub rename: Vec<MetricRename>,
}

/// The port that Prometheus scrapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Path of the metrics, which begins with `/`.
    pub path: String,
    /// A mapping file in the format of statsd_exporter.
    pub mapper: Option<PathBuf>,
}

section! {
    STATSD = "ratelimit.statsd";

    /// `host:port` of the server.
    ADDRESS: DefaultedKey<String> =
        ConfigKey::text("address", host_port).default_with(|| "localhost:8125".to_owned());
    /// Whether metrics are sent over UDP, not TCP.
    UDP: DefaultedKey<bool> = ConfigKey::truth("udp").default(false);
    /// Whether the server understands tags, as DogStatsD does.
    DOGSTATSD: DefaultedKey<bool> = ConfigKey::truth("dogstatsd").default(false);
    /// Time between two messages.
    EVERY: DefaultedKey<Nanos> = time("every").default(Nanos::from_secs(10));
    /// Tags of all metrics, as `key:value`.
    TAGS: ListKey<(String, String)> = ConfigKey::opaque("tags", tag).list().example("zone:eu-1");
    /// Sections with `match`, `name` and `tags`; the [first that matches](ratelimit.md#figures)
    /// applies.
    RENAME: SubsectionKey = SubsectionKey::list("rename", &RENAMES);
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

section! {
    PROMETHEUS = "ratelimit.prometheus";

    /// Address to listen on.
    LISTEN: DefaultedKey<SocketAddr> = ConfigKey::text("listen", address::listen)
        .default_with(|| SocketAddr::from(([0, 0, 0, 0], 9090)));
    /// Path of the metrics.
    PATH: DefaultedKey<String> =
        ConfigKey::text("path", url_path).default_with(|| "/metrics".to_owned());
    /// A [mapping file](ratelimit.md#figures), read at the start.
    MAPPER: ConfigKey<PathBuf> =
        ConfigKey::opaque("mapper", path).example("/etc/evenkeel/mapping.yaml");
}

/// Reads `statsd`.
pub(crate) fn statsd(section: &mut SectionReader<'_, '_>) -> RatelimitStatsd {
    RatelimitStatsd {
        address: section.key(&ADDRESS),
        udp: section.key(&UDP),
        dog: section.key(&DOGSTATSD),
        every: std_time(section.key(&EVERY)),
        tags: section.key(&TAGS),
        rename: renames(section),
    }
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

/// Reads `prometheus`.
pub(crate) fn prometheus(section: &mut SectionReader<'_, '_>) -> PrometheusSettings {
    PrometheusSettings {
        listen: section.key(&LISTEN),
        path: section.key(&PATH),
        mapper: section.key(&MAPPER),
    }
}

fn url_path(text: &str) -> Read<String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path begins with /".to_owned()),
    }
}
