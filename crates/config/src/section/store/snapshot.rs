//! The `state` section: the state that survives a restart.
//!
//! The keys are described in `rows::root`, the settings in `settings`. The snapshot itself is
//! written and read by `evenkeel_store::snapshot`; this file does not touch the disk.

use crate::reader::SectionReader;
use crate::rows::root as rows;
use crate::section::std_time;
use crate::settings::StateSettings;

/// Reads the section.
pub fn read(state: &mut SectionReader<'_, '_>) -> StateSettings {
    let file = state.key(&rows::STATE_FILE);
    let every = match &file {
        None if !state.has("every") => rows::EVERY.preset(),
        _ => state.key(&rows::EVERY),
    };
    if file.is_none() && state.has("every") {
        state.fault_of("every", "needs a `file` to write to; name one, or remove it");
    }
    StateSettings { file, every: std_time(every), keys_max: state.key(&rows::STATE_KEYS) }
}
