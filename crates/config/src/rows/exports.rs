//! The keys of `ratelimit.statsd` and `ratelimit.prometheus`: metrics as the reference has them.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::common::{host_port, tag, time};
use crate::settings::pattern::NameRegex;
use crate::values::{self, Read};
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The rows of `ratelimit.statsd`.
pub static STATSD: SectionTable = SectionTable {
    path: "ratelimit.statsd",
    keys: &[&ADDRESS, &UDP, &DOGSTATSD, &EVERY, &TAGS, &RENAME],
};

/// The rows of an entry of `ratelimit.statsd.rename`.
pub static RENAMES: SectionTable =
    SectionTable { path: "ratelimit.statsd.rename", keys: &[&MATCH, &NAME, &NEW_TAGS] };

/// The rows of `ratelimit.prometheus`.
pub static PROMETHEUS: SectionTable =
    SectionTable { path: "ratelimit.prometheus", keys: &[&LISTEN, &PATH, &MAPPER] };

pub(crate) static ADDRESS: DefaultedKey<String> =
    ConfigKey::text("address", host_port, "`host:port` of the server.")
        .default_with(|| "localhost:8125".to_owned());

pub(crate) static UDP: DefaultedKey<bool> =
    ConfigKey::truth("udp", "Whether metrics are sent over UDP, not TCP.").default(false);

pub(crate) static DOGSTATSD: DefaultedKey<bool> =
    ConfigKey::truth("dogstatsd", "Whether the server understands tags, as DogStatsD does.")
        .default(false);

pub(crate) static EVERY: DefaultedKey<Nanos> =
    time("every", "Time between two messages.").default(Nanos::from_secs(10));

pub(crate) static TAGS: ListKey<(String, String)> =
    ConfigKey::opaque("tags", tag, "Tags of all metrics, as `key:value`.")
        .example("zone:eu-1")
        .list();

pub(crate) static RENAME: SubsectionKey = SubsectionKey::list(
    "rename",
    &RENAMES,
    "Sections with `match`, `name` and `tags`; the [first that matches](ratelimit.md#figures) \
     applies.",
);

pub(crate) static MATCH: ConfigKey<NameRegex> =
    ConfigKey::text("match", NameRegex::new, "A regular expression for the names of metrics.")
        .example("ratelimit\\.service\\.(.*)")
        .required();

pub(crate) static NAME: ConfigKey<String> = ConfigKey::opaque(
    "name",
    |text| Ok(text.to_owned()),
    "The new name, in which `$1` is the text of the first group.",
)
.example("service.$1")
.required();

pub(crate) static NEW_TAGS: ListKey<(String, String)> = ConfigKey::opaque(
    "tags",
    tag,
    "Tags of the renamed metric, as `key:value`, in which `$1` is the text of the first group.",
)
.example("domain:$1")
.list();

pub(crate) static LISTEN: DefaultedKey<SocketAddr> =
    ConfigKey::text("listen", address::listen, "Address to listen on.")
        .default_with(|| SocketAddr::from(([0, 0, 0, 0], 9090)));

pub(crate) static PATH: DefaultedKey<String> =
    ConfigKey::text("path", url_path, "Path of the metrics.")
        .default_with(|| "/metrics".to_owned());

pub(crate) static MAPPER: ConfigKey<PathBuf> = ConfigKey::opaque(
    "mapper",
    mapper,
    "A [mapping file](ratelimit.md#figures), read at the start.",
)
.example("/etc/evenkeel/mapping.yaml");

fn url_path(text: &str) -> Read<String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path begins with /".to_owned()),
    }
}

fn mapper(text: &str) -> Read<PathBuf> {
    values::path(text).map_err(|_| "name a file or folder".to_owned())
}
