//! The waiting room as it runs: the keys of its tickets and passes, and its page, from their files.
//!
//! The files are examined once a second. A valid change is applied. An invalid one is logged and
//! ignored, so a page that is half written harms no visitor. When a visitor gets the
//! page is decided by the queue. The cookie: `visit`. The page: `waiting_page`.

use crate::visit::VisitKeys;
use crate::waiting_page::{WaitingPage, WaitingPageError};
use arc_swap::ArcSwap;
use evenkeel_config::secret::{self, SecretError};
use evenkeel_config::settings::{Settings, WaitingRoomSettings};
use evenkeel_config::source::files::{FileReadError, WatchedFile, WatchedFiles};
use evenkeel_config::{StartProblem, StartProblems};
use std::path::PathBuf;
use std::sync::Arc;

/// The secret of an instance without a file of secrets.
pub type InstanceSecret = [u8; 16];

/// The keys and the page.
pub struct WaitingRoomAssets {
    /// The keys of tickets and passes.
    pub keys: VisitKeys,
    /// The page.
    pub page: WaitingPage,
}

/// The waiting room in use, if there is one. Its content changes with its files.
pub type SharedWaitingRoom = Option<Arc<ArcSwap<WaitingRoomAssets>>>;

/// Error in the files of a waiting room.
#[derive(Debug, thiserror::Error)]
pub enum WaitingRoomError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] FileReadError),
    /// The file of secrets is invalid.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The page is invalid.
    #[error("{path}: {why}")]
    Page {
        /// Path of the file.
        path: PathBuf,
        /// The error in it.
        why: WaitingPageError,
    },
}

/// A waiting room that follows its files.
pub struct LiveWaitingRoom {
    settings: WaitingRoomSettings,
    secret: InstanceSecret,
    files: WatchedFiles,
    running: Arc<ArcSwap<WaitingRoomAssets>>,
}

impl LiveWaitingRoom {
    /// Reads the files. `secret` makes the key if no file does; an outsider must not know it.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn load(
        settings: &WaitingRoomSettings,
        secret: InstanceSecret,
    ) -> Result<LiveWaitingRoom, WaitingRoomError> {
        let paths = [&settings.secret_file, &settings.page];
        let mut files = WatchedFiles::new(paths.into_iter().flatten().cloned().collect());
        let room = built(settings, &secret, &files.read()?)?;
        let running = Arc::new(ArcSwap::from_pointee(room));
        Ok(LiveWaitingRoom { settings: settings.clone(), secret, files, running })
    }

    /// The room in use. It can be read at any time.
    #[must_use]
    pub fn running(&self) -> Arc<ArcSwap<WaitingRoomAssets>> {
        Arc::clone(&self.running)
    }

    /// Applies the files if they have changed. Must be called once a second.
    pub fn look(&mut self) {
        let Some(files) = self.files.look() else { return };
        match built(&self.settings, &self.secret, &files) {
            Ok(room) => {
                self.running.store(Arc::new(room));
                tracing::info!(target: "evenkeel::proxy", "files of the waiting room reloaded");
            }
            Err(error) => tracing::error!(
                target: "evenkeel::proxy", %error,
                "files of the waiting room refused; the previous ones stay in use"
            ),
        }
    }
}

/// Builds the room from the files that `settings` names, in their order there.
fn built(
    settings: &WaitingRoomSettings,
    secret: &InstanceSecret,
    files: &[WatchedFile],
) -> Result<WaitingRoomAssets, WaitingRoomError> {
    let mut files = files.iter();
    let keys = match settings.secret_file.as_ref().and_then(|_| files.next()) {
        Some(file) => keys(&secret::several(&file.path, &file.bytes)?, secret),
        None => VisitKeys::new(secret, &[]),
    };
    let page = match settings.page.as_ref().and_then(|_| files.next()) {
        Some(file) => WaitingPage::parse(&file.bytes)
            .map_err(|why| WaitingRoomError::Page { path: file.path.clone(), why })?,
        None => WaitingPage::default(),
    };
    Ok(WaitingRoomAssets { keys, page })
}

fn keys(secrets: &[&str], otherwise: &InstanceSecret) -> VisitKeys {
    let secrets: Vec<&[u8]> = secrets.iter().map(|secret| secret.as_bytes()).collect();
    match secrets.split_first() {
        Some((signing, others)) => VisitKeys::new(signing, others),
        None => VisitKeys::new(otherwise, &[]),
    }
}

/// Finds the problems that a start would have with the files of the waiting room.
#[must_use]
pub fn start_problems(settings: &Settings) -> StartProblems {
    let room = settings.proxy.as_ref().and_then(|proxy| proxy.queue.waiting_room.as_ref());
    let error = room.and_then(|room| LiveWaitingRoom::load(room, [0; 16]).err());
    let fault = |error: WaitingRoomError| -> StartProblem {
        let way: &[&str] = match &error {
            WaitingRoomError::Secret(_) => &["proxy", "queue", "waiting_room", "secret_file"],
            WaitingRoomError::Page { .. } => &["proxy", "queue", "waiting_room", "page"],
            WaitingRoomError::Read(_) => &["proxy", "queue", "waiting_room"],
        };
        (way, error.to_string())
    };
    StartProblems { faults: error.map(fault).into_iter().collect(), ..StartProblems::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::visit::VisitProof;
    use evenkeel_core::queue::standing::VisitTicket;
    use evenkeel_core::units::{Nanos, Time};
    use std::fs;
    use std::net::{IpAddr, Ipv4Addr};

    const NOW: Time = Time(1_800_000_000_000_000_000);

    fn accepts(room: &WaitingRoomAssets, token: &str) -> bool {
        let line = format!("evenkeel={token}");
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        room.keys.proof([line.as_bytes()].into_iter(), client, NOW) != VisitProof::Nothing
    }

    fn ticket(room: &WaitingRoomAssets) -> String {
        room.keys.ticket(VisitTicket { id: 1, first_came: NOW })
    }

    #[test]
    fn without_files_the_secret_of_the_instance_makes_the_key() {
        let load = |secret| {
            let room = LiveWaitingRoom::load(&WaitingRoomSettings::default(), secret);
            room.expect("no file").running().load_full()
        };
        let (one, same, other) = (load([1; 16]), load([1; 16]), load([2; 16]));
        let ticket = ticket(&one);
        assert!(accepts(&same, &ticket) && !accepts(&other, &ticket));
        assert_eq!(one.page, WaitingPage::default());
    }

    #[test]
    fn changed_files_are_applied_and_faulty_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (secrets, page) = (folder.path().join("s"), folder.path().join("p"));
        fs::write(&secrets, "0123456789abcdef\n").expect("written");
        fs::write(&page, "wait {{seconds}}").expect("written");
        let settings =
            WaitingRoomSettings { secret_file: Some(secrets.clone()), page: Some(page.clone()) };
        let mut live = LiveWaitingRoom::load(&settings, [0; 16]).expect("good files");
        let running = live.running();
        let shown = || running.load().page.render(Nanos::from_secs(3), Nanos::from_secs(3));
        let old = ticket(&running.load());
        assert_eq!(shown(), "wait 3");
        let mut change = |path: &PathBuf, text: &str| {
            fs::write(path, text).expect("written");
            (0..3).for_each(|_| live.look());
        };
        change(&page, "please wait {{wait}}");
        assert_eq!(shown(), "please wait 3 seconds");
        change(&page, "{{nothing}} here");
        assert_eq!(shown(), "please wait 3 seconds");
        change(&page, "at last");
        change(&secrets, "fedcba9876543210\n0123456789abcdef");
        assert!(accepts(&running.load(), &old) && shown() == "at last");
        assert_ne!(ticket(&running.load()), old);
        change(&secrets, "fedcba9876543210\n");
        assert!(!accepts(&running.load(), &old));
        change(&secrets, "short");
        assert!(accepts(&running.load(), &ticket(&running.load())));
    }

    #[test]
    fn faults_name_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = folder.path().join("page.html");
        let of = |settings: &WaitingRoomSettings| {
            LiveWaitingRoom::load(settings, [0; 16]).err().map(|error| error.to_string())
        };
        let settings = WaitingRoomSettings { page: Some(page.clone()), secret_file: None };
        assert!(of(&settings).expect("missing").contains("page.html: No such file"));
        fs::write(&page, "a\n{{b}}").expect("written");
        assert!(of(&settings).expect("faulty").contains("page.html: line 2: unknown placeholder"));
        let settings = WaitingRoomSettings { page: None, secret_file: Some(page) };
        assert!(of(&settings).expect("faulty").contains("page.html must hold one to four secrets"));
    }
}
