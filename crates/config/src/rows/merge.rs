//! The keys of an entry of `proxy.merge`.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, SectionTable};
use crate::settings::hosts::{HostPattern, host_name};
use crate::values::Read;

/// The rows of an entry.
pub static TABLE: SectionTable = SectionTable { path: "proxy.merge", keys: &[&MATCH, &AS] };

pub(crate) static MATCH: ConfigKey<HostPattern> = ConfigKey::text(
    "match",
    address::host,
    "The host names that count together: `host:*.example.com` or `host:www.example.com`.",
)
.example("host:*.example.com")
.required();

pub(crate) static AS: ConfigKey<Box<str>> =
    ConfigKey::text("as", name, "The name under which they count.")
        .example("example.com")
        .required();

fn name(text: &str) -> Read<Box<str>> {
    host_name(text).ok_or_else(|| "a name such as googlebot.com".to_owned())
}
