//! The `ratelimit.xds` section: a server that rules come from.
//!
//! The connection to it is in `evenkeel_ratelimit`; host names are not resolved here.

use super::{host_port, tag, time};
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, ValueSyntax, section};
use crate::reader::{SectionReader, settings};
use crate::settings::tls;
use crate::settings::tls::ClientTls;
use crate::tree::YamlValue;
use crate::values::{Read, header_name, part, truth};
use evenkeel_core::units::Nanos;
use std::time::Duration;

settings! {
    /// A management server that sends rules by xDS, the complete state in each message.
    #[derive(Clone, Debug, PartialEq)]
    pub struct XdsSettings from read(section);

    /// Time until another attempt if the server could not be reached; it doubles each time.
    pub retry: Duration, RETRY: DefaultedKey<Nanos> = time("retry").default(Nanos::from_secs(3))
        .low("attempts all the time").high("old rules for long");
    /// `host:port` of the server, resolved at each connect.
    pub server: String, SERVER: DefaultedKey<String> =
        ConfigKey::text("server", host_port).default_with(|| "localhost:18000".to_owned());
    /// Name of this instance at the server.
    pub node_id: String, NODE_ID: DefaultedKey<String> =
        ConfigKey::text("node_id", |text| Ok(text.to_owned()))
            .default_with(|| "default".to_owned());
    /// Further facts about this instance, as `key:value`.
    pub metadata: Vec<(String, String)>, METADATA: ListKey<(String, String)> =
        ConfigKey::opaque("metadata", tag).list().example("zone:eu-1");
    /// Headers of the call, as `name:value`.
    pub headers: Vec<(String, String)>, HEADERS: ListKey<(String, String)> =
        ConfigKey::opaque("headers", header).list().example("authorization:Bearer abc");
    /// `true`, or a section as in [traces](#tracestls). Files are read for each connection.
    pub tls: Option<ClientTls>, TLS: SubsectionKey =
        SubsectionKey::one("tls", &tls::CLIENT).default_note("`false`")
            .or_words(&["true", "false"]) => client_tls(section);
    /// The same if the server was reached and the stream ended.
    pub retry_stream: Duration, RETRY_STREAM: ConfigKey<Nanos> =
        time("retry_stream").default_note("as `retry`").example("1s")
        => section.key_or(&RETRY_STREAM, Nanos(retry.as_nanos() as u64)).into();
    /// The longest of these times.
    pub retry_max: Duration, RETRY_MAX: DefaultedKey<Nanos> = time("retry_max")
        .default(Nanos::from_secs(60)).high("old rules for long after the server is back");
    /// By which part of itself each time is longer or shorter at random.
    pub retry_spread: f64, RETRY_SPREAD: DefaultedKey<f64> =
        ConfigKey::new("retry_spread", ValueSyntax::Number, part).within(0.0, 1.0).default(0.5)
            .low("many instances connect at the same time");
    /// Maximum length of a message, in bytes. A longer one ends the stream.
    pub message_bytes_max: usize, MESSAGE_BYTES: DefaultedKey<usize> =
        ConfigKey::whole("message_bytes").within(1 << 10, 256 << 20).default(16 << 20)
            .low("rules do not arrive").high("memory");
}

section! {
    TABLE = "ratelimit.xds":
        SERVER, NODE_ID, METADATA, HEADERS, TLS, RETRY, RETRY_STREAM, RETRY_MAX, RETRY_SPREAD,
        MESSAGE_BYTES;
}

/// Reads `tls: true`, which trusts the system's authorities, or a section with more keys.
fn client_tls(section: &mut SectionReader<'_, '_>) -> Option<ClientTls> {
    match section.node("tls").map(|node| &node.value) {
        None => None,
        Some(YamlValue::Map(_)) => Some(section.section(&TLS, tls::client)),
        Some(_) => section.key_with("tls", truth)?.then(ClientTls::default),
    }
}

fn header(text: &str) -> Read<(String, String)> {
    let (name, value) = tag(text)?;
    let sound = http::HeaderValue::from_str(&value).is_ok();
    header_name(&name)?;
    if sound { Ok((name, value)) } else { Err("this is not a header".to_owned()) }
}
