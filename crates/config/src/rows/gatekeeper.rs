//! The keys of `gatekeeper`: the masters to follow, and the identifiers of requests.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::limits::{self, CONDITION, KeyTemplateWord, part};
use crate::settings::gatekeeper::{DEFAULT_PORT, MasterAddress, MasterAddressError, is_domain};
use crate::values::{DAY, Read};
use evenkeel_core::units::Nanos;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "gatekeeper",
    keys: &[
        &MASTER,
        &CONTROL,
        &WHEN,
        &DOMAIN,
        &IDENTIFIER,
        &MAX_DELAY,
        &HELD_MAX,
        &KEYS,
        &LOG_INFO,
        &REJECTED_ONE_IN,
    ],
};

pub(crate) static MASTER: DefaultedKey<MasterAddress> = ConfigKey::text(
    "master",
    remote,
    "Where requests are reported to the master: `tcp://host:port`; without a port it is 10004. A \
     name is resolved at each connect.",
)
.default_with(|| MasterAddress { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT });

pub(crate) static CONTROL: ConfigKey<MasterAddress> =
    ConfigKey::text("control", remote, "Where the master publishes the clients to hold.")
        .default_note("the next port")
        .example("tcp://127.0.0.1:10005");

pub(crate) static WHEN: SubsectionKey = SubsectionKey::one(
    "when",
    &CONDITION,
    "The requests of this gate, as in [limits](#when). In a list the first gate that matches \
     applies; a request without a gate passes.",
)
.default_note("all requests");

pub(crate) static DOMAIN: DefaultedKey<String> =
    ConfigKey::text("domain", domain, "The domain of the master.")
        .range_note("1 to 255 bytes")
        .default_with(|| "default".to_owned());

pub(crate) static IDENTIFIER: ListKey<KeyTemplateWord> = ConfigKey::opaque(
    "identifier",
    part,
    "How a request is identified at the master: one or several of what [`by`](#what-by-takes) \
     takes.",
)
.default_note("`ip/32`")
.example("ip/32")
.list();

pub(crate) static MAX_DELAY: DefaultedKey<Nanos> = ConfigKey::duration(
    "max_delay",
    "The longest wait. A request that would have to wait longer is refused.",
)
.within(Nanos::ZERO, DAY)
.low("bursts of real users are refused")
.high("clients give up first")
.default(Nanos::from_secs(5));

pub(crate) static HELD_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "held_max",
    "Requests that are held at once. Beyond it a request that would have to wait is refused.",
)
.within(0, 1_000_000)
.low("requests are refused although they could wait")
.high("memory and open files")
.default(1024);

pub(crate) static KEYS: ConfigKey<usize> = limits::keys_max(
    "Number of identifiers that have to wait and are remembered, 24 bytes each. Beyond it the ones \
     with the shortest wait are evicted, and pass.",
)
.default_note("`state.keys_max`, else 65 536");

pub(crate) static LOG_INFO: ListKey<KeyTemplateWord> = ConfigKey::opaque(
    "log_info",
    part,
    "What the master gets of each request for its log, where all its readers see it: one or \
     several of what [`by`](#what-by-takes) takes.",
)
.example("path")
.list();

pub(crate) static REJECTED_ONE_IN: DefaultedKey<u64> = ConfigKey::whole(
    "rejected_one_in",
    "One in this number of refused requests is reported to the master, for its statistics. `0`: \
     none.",
)
.high("its statistics of refused requests are coarse")
.default(1);

fn domain(text: &str) -> Read<String> {
    let wrong = || "the name of a domain must have 1 to 255 bytes without NUL".to_owned();
    is_domain(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn remote(text: &str) -> Read<MasterAddress> {
    text.parse().map_err(|fault: MasterAddressError| fault.to_string())
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s24_the_control_socket_is_at_the_next_port() {
        for (text, accounting, control) in [
            ("localhost", "tcp://localhost:10004", "tcp://localhost:10005"),
            ("master.example:9", "tcp://master.example:9", "tcp://master.example:10"),
            ("tcp://h:1", "tcp://h:1", "tcp://h:2"),
            ("[::1]:5", "tcp://[::1]:5", "tcp://[::1]:6"),
            ("tcp://[::1]", "tcp://[::1]:10004", "tcp://[::1]:10005"),
        ] {
            let master = remote(text).expect(text);
            assert_eq!((&*master.to_string(), &*master.next().to_string()), (accounting, control));
        }
        for text in
            ["", "tcp://", "*:77", "h:0", "h:x", "h:99999", "::1", "[::1", "udp://h:1", "a b"]
        {
            assert!(remote(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fuzz_any_address_is_read_or_refused_and_what_is_written_is_read_back() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|text| {
            if let Ok(address) = remote(text) {
                assert_eq!(remote(&address.to_string()), Ok(address));
            }
        });
    }
}
