//! The `ratelimit.rlqs` section: how limits are assigned to Envoys that decide by themselves.
//!
//! The assignments are computed in `evenkeel_ratelimit`.

use super::time;
use crate::keys::{ConfigKey, DefaultedKey, ValueSyntax};
use crate::reader::settings;
use crate::values::{HOUR, Read, duration, within};
use evenkeel_core::units::{Nanos, SECOND};
use std::time::Duration;

settings! {
    /// The rate limit quota service: how limits are shared out among Envoys.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RlqsSettings from read(section), TABLE = "ratelimit.rlqs";

    /// Time for which an assignment is valid, in whole seconds.
    pub ttl: Duration, TTL: DefaultedKey<Nanos> =
        ConfigKey::new("ttl", ValueSyntax::Duration, whole_seconds).range_note("2s to 1h")
            .default(Nanos::from_secs(60)).low("more messages; without Evenkeel limits soon end")
            .high("an Envoy refuses for longer when Evenkeel is gone");
    /// Time without a report after which a bucket is forgotten.
    pub idle: Duration, IDLE: DefaultedKey<Nanos> = time("idle").default(Nanos::from_secs(600));
    /// Envoys at once.
    pub streams_max: usize, STREAMS: DefaultedKey<usize> = ConfigKey::whole("streams")
        .within(1, 100_000).default(1_000).low("Envoys without limits").high("memory");
    /// Buckets of all Envoys together, up to 2 KiB each.
    pub buckets_max: usize, BUCKETS: DefaultedKey<usize> = ConfigKey::whole("buckets")
        .within(1, 10_000_000).default(100_000).low("buckets without limits").high("memory");
    /// Whether parts are written as requests per unit, which the filter of Envoy does not support.
    pub per_unit: bool, PER_UNIT: DefaultedKey<bool> = ConfigKey::truth("per_unit").default(false);
}

fn whole_seconds(text: &str) -> Read<Nanos> {
    let nanos = within(duration(text)?, Nanos::from_secs(2)..=HOUR)?;
    match nanos.0.is_multiple_of(SECOND) {
        true => Ok(nanos),
        false => Err("must be whole seconds".to_owned()),
    }
}
