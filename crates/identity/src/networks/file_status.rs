//! What is shown and told of a file about networks in use: its number of networks and its age.
//!
//! Networks change hands, so a file that has not been renewed for a month is reported, once for
//! each content of the file. Reading and following files is in `live`.

use super::address_list::AddressList;
use super::database::NetworkDatabase;
use evenkeel_core::units::Time;
use evenkeel_telemetry::metrics::{NETWORK_FILE_ENTRIES, NETWORK_FILE_TIME};
use evenkeel_telemetry::registry::{Gauge, Registry};
use std::path::{Path, PathBuf};

/// Age from which a file is old, in seconds: 30 days.
const OLD_SECONDS: u64 = 30 * 86_400;

/// What is known of the content of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFileNote {
    /// The number of its networks.
    pub networks: usize,
    /// When it was made or last renewed, in seconds since the Unix epoch. `None` for a list without
    /// a time, which people write themselves.
    pub time: Option<u64>,
}

impl NetworkFileNote {
    /// Of a database. `modified` is the time of its file.
    #[must_use]
    pub fn of_database(database: &NetworkDatabase, modified: u64) -> NetworkFileNote {
        let time = Some(renewed(database.created().unwrap_or(0), modified));
        NetworkFileNote { networks: database.networks(), time }
    }

    /// Of an address list. `modified` is the time of its file.
    #[must_use]
    pub fn of_list(list: &AddressList, modified: u64) -> NetworkFileNote {
        let time = list.created().map(|created| renewed(created, modified));
        NetworkFileNote { networks: list.networks(), time }
    }

    /// The age in days, if the file is old.
    #[must_use]
    pub fn old_days(&self, now: Time) -> Option<u64> {
        let age = now.second().saturating_sub(self.time?);
        (age > OLD_SECONDS).then_some(age / 86_400)
    }

    /// The warning that the file is old, if it is.
    #[must_use]
    pub fn old_text(&self, path: &Path, now: Time) -> Option<String> {
        let days = self.old_days(now)?;
        Some(format!("{} is {days} days old; download it again", path.display()))
    }

    /// What is in the file.
    #[must_use]
    pub fn text(&self, path: &Path) -> String {
        let networks = if self.networks == 1 { "network" } else { "networks" };
        format!("{} {networks} in {}", self.networks, path.display())
    }
}

/// Publishers that change nothing for months leave the time that they state as it is, and programs
/// that download may set the time of the file. The later one tells when the file was renewed.
fn renewed(created: u64, modified: u64) -> u64 {
    created.max(modified)
}

/// A file in use.
pub struct NetworkFileStatus {
    of: String,
    path: PathBuf,
    note: NetworkFileNote,
    told_old: bool,
    networks: Gauge,
    time: Gauge,
}

impl NetworkFileStatus {
    /// The status of a file before its content is known. `of` is its name in metrics and messages.
    #[must_use]
    pub fn new(of: String, path: PathBuf, registry: &Registry) -> NetworkFileStatus {
        let networks = registry.gauge(&NETWORK_FILE_ENTRIES, &[&of]);
        let time = registry.gauge(&NETWORK_FILE_TIME, &[&of]);
        let note = NetworkFileNote::default();
        NetworkFileStatus { of, path, note, told_old: false, networks, time }
    }

    /// The content of the file as it was last read.
    #[must_use]
    pub const fn note(&self) -> NetworkFileNote {
        self.note
    }

    /// Shows the content of the file, which has just been read.
    pub fn show(&mut self, note: NetworkFileNote) {
        (self.note, self.told_old) = (note, false);
        self.networks.set(i64::try_from(note.networks).unwrap_or(i64::MAX));
        self.time.set(note.time.and_then(|time| i64::try_from(time).ok()).unwrap_or(0));
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shows that the file is no longer in use.
    pub fn clear(&self) {
        self.networks.set(0);
        self.time.set(0);
    }

    /// Logs once that the file is old. Returns whether it did.
    pub fn tell_age(&mut self, now: Time) -> bool {
        let Some(days) = self.note.old_days(now).filter(|_| !self.told_old) else { return false };
        self.told_old = true;
        let (of, file) = (&self.of, self.path.display());
        tracing::warn!(
            target: "evenkeel::networks", of, %file, days,
            "file about networks is old; download it again"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::network_field::NetworkField;
    use super::*;

    const DAY: u64 = 86_400;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn the_age_is_the_time_since_a_file_was_made_or_renewed() {
        let old = |time, now| NetworkFileNote { networks: 1, time }.old_days(now);
        let now = at(100 * DAY);
        assert_eq!(old(Some(70 * DAY), now), None);
        assert_eq!(old(Some(69 * DAY), now), Some(31));
        assert_eq!(old(Some(200 * DAY), now), None);
        assert_eq!(old(None, now), None);
        let list = |text: &str, modified| {
            let list = AddressList::parse(text.as_bytes()).expect("a list");
            NetworkFileNote::of_list(&list, modified).time
        };
        let published = r#"{"creationTime": "2026-01-01T00:00:00Z", "prefixes": ["192.0.2.0/24"]}"#;
        let made = 1_767_225_600;
        assert_eq!(list(published, 7), Some(made));
        assert_eq!(list(published, made + DAY), Some(made + DAY));
        assert_eq!(list("192.0.2.0/24", 7), None);
        let table = b"10.0.0.0\t10.0.0.255\t64500\tDE\tX\n";
        let asns = NetworkDatabase::parse(NetworkField::Asn, table).expect("a table");
        assert_eq!(NetworkFileNote::of_database(&asns, 7).time, Some(7));
    }

    #[test]
    fn an_old_file_is_told_once() {
        let registry = Registry::default();
        let mut status = NetworkFileStatus::new("asn".to_owned(), "file".into(), &registry);
        let gauge = |metric| registry.gauge(metric, &["asn"]).get();
        let note = NetworkFileNote { networks: 7, time: Some(DAY) };
        status.show(note);
        assert_eq!([gauge(&NETWORK_FILE_ENTRIES), gauge(&NETWORK_FILE_TIME)], [7, 86_400]);
        assert!(!status.tell_age(at(31 * DAY)));
        assert!(status.tell_age(at(32 * DAY)) && !status.tell_age(at(33 * DAY)));
        status.show(note);
        assert!(status.tell_age(at(33 * DAY)), "the file is another one");
    }
}
