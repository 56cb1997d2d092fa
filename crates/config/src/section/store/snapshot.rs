//! The `state` section: the state that survives a restart.
//!
//! Each key is read with its default and its range. The settings are described in `settings`. The
//! snapshot itself is written and read by `evenkeel_store::snapshot`; this file does not touch the
//! disk.

use crate::reader::{SectionReader, within};
use crate::section::limits::keys_max;
use crate::section::proxy::duration;
use crate::settings::StateSettings;
use evenkeel_core::units::Nanos;
use std::time::Duration;

/// Range of the time between two snapshots. With a shorter time the process would do little else; a
/// longer one than a day makes snapshots useless.
const SNAPSHOT_INTERVAL_RANGE: std::ops::RangeInclusive<Nanos> =
    Nanos::from_millis(100)..=Nanos::from_secs(86_400);

/// Reads the section.
pub fn read(state: &mut SectionReader<'_, '_>) -> StateSettings {
    let file = state.optional("file", crate::section::path);
    let every = match &file {
        None if !state.has("every") => {
            state.allow("every");
            Nanos::from_secs(5)
        }
        _ => state.value("every", Nanos::from_secs(5), |text| {
            within(duration(text)?, SNAPSHOT_INTERVAL_RANGE)
        }),
    };
    if file.is_none() && state.has("every") {
        state.fault("every", "`every` needs a `file` to write to; name one, or remove it");
    }
    StateSettings {
        file,
        every: Duration::from_nanos(every.0),
        keys_max: state.optional("keys_max", keys_max),
    }
}
