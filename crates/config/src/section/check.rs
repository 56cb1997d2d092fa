//! The `check` section: the access and the log phase of servers with their own front end.
//!
//! It has no limits of its own: those of `proxy` count for both doors together. The keys are
//! described in `rows::check`, the settings in `settings`.

use super::std_time;
use crate::reader::SectionReader;
use crate::rows::check as rows;
use crate::settings::CheckSettings;

/// Reads the section.
pub fn read(check: &mut SectionReader<'_, '_>) -> CheckSettings {
    CheckSettings {
        listen: check.key(&rows::LISTEN),
        syslog: check.key(&rows::SYSLOG),
        report_within: std_time(check.key(&rows::REPORT_WITHIN)),
        open_max: check.key(&rows::OPEN_MAX),
        waiting_max: check.key(&rows::WAITING_MAX),
    }
}
