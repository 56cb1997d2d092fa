//! The files about networks before a start: which of them cannot be used, and what is in them.
//!
//! Nothing that is read here is kept: `live` reads the files again when the program runs.

use super::file_status::NetworkFileNote;
use super::live::{NetworkFileKind, NetworkLoadError, ReadNetworkFile, kinds};
use super::network_field::NetworkField;
use evenkeel_config::settings::Settings;
use evenkeel_config::settings::sockets::KeyPath;
use evenkeel_config::{FileProblem, StartProblem, StartProblems};
use evenkeel_core::units::Time;
use std::path::PathBuf;

/// A file that was read for a trial.
struct ExaminedFile {
    way: KeyPath,
    path: PathBuf,
    read: Result<NetworkFileNote, NetworkLoadError>,
}

fn examined(settings: &Settings) -> Vec<ExaminedFile> {
    let files = settings.proxy.as_ref().map(|proxy| proxy.network_files()).unwrap_or_default();
    let examined = |(kind, path): (NetworkFileKind, PathBuf)| {
        let way: KeyPath = match kind {
            NetworkFileKind::Database(NetworkField::Asn) => &["proxy", "databases", "asn"],
            NetworkFileKind::Database(NetworkField::Country) => &["proxy", "databases", "country"],
            NetworkFileKind::List(_) => &["proxy"],
        };
        let read = ReadNetworkFile::read((kind, path.clone())).map(|read| read.note);
        ExaminedFile { way, read, path }
    };
    kinds(&files).into_iter().map(examined).collect()
}

/// Finds the problems that a start would have with the files about networks. A file that is old is
/// a doubt.
#[must_use]
pub fn start_problems(settings: &Settings, now: Time) -> StartProblems {
    let mut problems = StartProblems::default();
    for ExaminedFile { way, path, read } in examined(settings) {
        match read {
            Ok(note) => {
                let doubt = note.old_text(&path, now).map(|what| -> StartProblem { (way, what) });
                problems.doubts.extend(doubt);
            }
            // A key of its own names a database.
            Err(error) if way.len() > 1 => problems.faults.push((way, error.to_string())),
            Err(error) => problems.files.push(FileProblem { way, path, what: error.to_string() }),
        }
    }
    problems
}

/// What is in each file about networks, in a line.
#[must_use]
pub fn notes(settings: &Settings) -> Vec<String> {
    let note = |ExaminedFile { way, path, read }| {
        Some(format!("`{}`: {}", way.join("."), read.ok()?.text(&path)))
    };
    examined(settings).into_iter().filter_map(note).collect()
}
