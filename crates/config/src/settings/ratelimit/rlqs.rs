//! The `ratelimit.rlqs` section: how limits are assigned to Envoys that decide by themselves.
//!
//! The assignments are computed in `evenkeel_ratelimit`.

use super::time;
use crate::keys::{ConfigKey, DefaultedKey, ValueSyntax, section};
use crate::reader::SectionReader;
use crate::values::{HOUR, Read, duration, std_time, within};
use evenkeel_core::units::{Nanos, SECOND};
use std::time::Duration;

/// The rate limit quota service: how limits are shared out among Envoys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RlqsSettings {
    /// How long an Envoy may use its last assignment, in whole seconds.
    pub ttl: Duration,
    /// A bucket without requests for this time is no longer tracked.
    pub idle: Duration,
    /// Maximum number of Envoys at once. Further ones are refused and behave as without a server.
    pub streams_max: usize,
    /// Maximum number of buckets of all Envoys, up to 2 KiB each. Further ones get no assignment.
    pub buckets_max: usize,
    /// Whether assignments are written as requests per time unit where one fits.
    pub per_unit: bool,
}

section! {
    TABLE = "ratelimit.rlqs";

    /// Time for which an assignment is valid, in whole seconds.
    TTL: DefaultedKey<Nanos> = ConfigKey::new("ttl", ValueSyntax::Duration, whole_seconds)
        .range_note("2s to 1h").default(Nanos::from_secs(60))
        .low("more messages; without Evenkeel limits soon end")
        .high("an Envoy refuses for longer when Evenkeel is gone");
    /// Time without a report after which a bucket is forgotten.
    IDLE: DefaultedKey<Nanos> = time("idle").default(Nanos::from_secs(600));
    /// Envoys at once.
    STREAMS: DefaultedKey<usize> = ConfigKey::whole("streams").within(1, 100_000).default(1_000)
        .low("Envoys without limits").high("memory");
    /// Buckets of all Envoys together, up to 2 KiB each.
    BUCKETS: DefaultedKey<usize> = ConfigKey::whole("buckets").within(1, 10_000_000)
        .default(100_000).low("buckets without limits").high("memory");
    /// Whether parts are written as requests per unit, which the filter of Envoy does not support.
    PER_UNIT: DefaultedKey<bool> = ConfigKey::truth("per_unit").default(false);
}

/// Reads the section.
pub(crate) fn read(section: &mut SectionReader<'_, '_>) -> RlqsSettings {
    RlqsSettings {
        ttl: std_time(section.key(&TTL)),
        idle: std_time(section.key(&IDLE)),
        streams_max: section.key(&STREAMS),
        buckets_max: section.key(&BUCKETS),
        per_unit: section.key(&PER_UNIT),
    }
}

fn whole_seconds(text: &str) -> Read<Nanos> {
    let nanos = within(duration(text)?, Nanos::from_secs(2)..=HOUR)?;
    match nanos.0.is_multiple_of(SECOND) {
        true => Ok(nanos),
        false => Err("must be whole seconds".to_owned()),
    }
}
