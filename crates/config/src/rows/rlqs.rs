//! The keys of `ratelimit.rlqs`: how limits are assigned to Envoys that decide by themselves.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, SectionTable, ValueSyntax};
use crate::rows::common::time;
use crate::values::{HOUR, Read, duration, within};
use evenkeel_core::units::{Nanos, SECOND};

/// The rows of the section.
pub static TABLE: SectionTable =
    SectionTable { path: "ratelimit.rlqs", keys: &[&TTL, &IDLE, &STREAMS, &BUCKETS, &PER_UNIT] };

pub(crate) static TTL: DefaultedKey<Nanos> = ConfigKey::new(
    "ttl",
    ValueSyntax::Duration,
    whole_seconds,
    "Time for which an assignment is valid, in whole seconds.",
)
.range_note("2s to 1h")
.low("more messages; without Evenkeel limits soon end")
.high("an Envoy refuses for longer when Evenkeel is gone")
.default(Nanos::from_secs(60));

pub(crate) static IDLE: DefaultedKey<Nanos> =
    time("idle", "Time without a report after which a bucket is forgotten.")
        .default(Nanos::from_secs(600));

pub(crate) static STREAMS: DefaultedKey<usize> = ConfigKey::whole("streams", "Envoys at once.")
    .within(1, 100_000)
    .low("Envoys without limits")
    .high("memory")
    .default(1_000);

pub(crate) static BUCKETS: DefaultedKey<usize> =
    ConfigKey::whole("buckets", "Buckets of all Envoys together, up to 2 KiB each.")
        .within(1, 10_000_000)
        .low("buckets without limits")
        .high("memory")
        .default(100_000);

pub(crate) static PER_UNIT: DefaultedKey<bool> = ConfigKey::truth(
    "per_unit",
    "Whether parts are written as requests per unit, which the filter of Envoy does not support.",
)
.default(false);

fn whole_seconds(text: &str) -> Read<Nanos> {
    let nanos = within(duration(text)?, Nanos::from_secs(2)..=HOUR)?;
    match nanos.0.is_multiple_of(SECOND) {
        true => Ok(nanos),
        false => Err("must be whole seconds".to_owned()),
    }
}
