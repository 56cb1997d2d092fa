//! The keys of `ratelimit.xds`: a server that rules come from.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey, ValueSyntax};
use crate::rows::common::{host_port, tag, time};
use crate::rows::tls;
use crate::values::{Read, header_name, within};
use evenkeel_core::units::Nanos;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "ratelimit.xds",
    keys: &[
        &SERVER,
        &NODE_ID,
        &METADATA,
        &HEADERS,
        &TLS,
        &RETRY,
        &RETRY_STREAM,
        &RETRY_MAX,
        &RETRY_SPREAD,
        &MESSAGE_BYTES,
    ],
};

pub(crate) static SERVER: DefaultedKey<String> =
    ConfigKey::text("server", host_port, "`host:port` of the server, resolved at each connect.")
        .default_with(|| "localhost:18000".to_owned());

pub(crate) static NODE_ID: DefaultedKey<String> =
    ConfigKey::text("node_id", |text| Ok(text.to_owned()), "Name of this instance at the server.")
        .default_with(|| "default".to_owned());

pub(crate) static METADATA: ListKey<(String, String)> =
    ConfigKey::opaque("metadata", tag, "Further facts about this instance, as `key:value`.")
        .example("zone:eu-1")
        .list();

pub(crate) static HEADERS: ListKey<(String, String)> =
    ConfigKey::opaque("headers", header, "Headers of the call, as `name:value`.")
        .example("authorization:Bearer abc")
        .list();

pub(crate) static TLS: SubsectionKey = SubsectionKey::one(
    "tls",
    &tls::CLIENT,
    "`true`, or a section as in [traces](#tracestls). Files are read for each connection.",
)
.or_words(&["true", "false"])
.default_note("`false`");

pub(crate) static RETRY: DefaultedKey<Nanos> = time(
    "retry",
    "Time until another attempt if the server could not be reached; it doubles each time.",
)
.low("attempts all the time")
.high("old rules for long")
.default(Nanos::from_secs(3));

pub(crate) static RETRY_STREAM: ConfigKey<Nanos> =
    time("retry_stream", "The same if the server was reached and the stream ended.")
        .default_note("as `retry`")
        .example("1s");

pub(crate) static RETRY_MAX: DefaultedKey<Nanos> = time("retry_max", "The longest of these times.")
    .high("old rules for long after the server is back")
    .default(Nanos::from_secs(60));

pub(crate) static RETRY_SPREAD: DefaultedKey<f64> = ConfigKey::new(
    "retry_spread",
    ValueSyntax::Number,
    spread,
    "By which part of itself each time is longer or shorter at random.",
)
.within(0.0, 1.0)
.low("many instances connect at the same time")
.default(0.5);

pub(crate) static MESSAGE_BYTES: DefaultedKey<usize> = ConfigKey::whole(
    "message_bytes",
    "Maximum length of a message, in bytes. A longer one ends the stream.",
)
.within(1 << 10, 256 << 20)
.low("rules do not arrive")
.high("memory")
.default(16 << 20);

fn header(text: &str) -> Read<(String, String)> {
    let (name, value) = tag(text)?;
    let sound = http::HeaderValue::from_str(&value).is_ok();
    header_name(&name)?;
    if sound { Ok((name, value)) } else { Err("this is not a header".to_owned()) }
}

fn spread(text: &str) -> Read<f64> {
    let number = text.parse::<f64>().map_err(|_| "not a number from 0 to 1".to_owned());
    within(number?, 0.0..=1.0)
}
