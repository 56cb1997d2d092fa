//! The files about networks in use, and their changes.
//!
//! Requests read `NetworkTables`, which are replaced as a whole. A thread examines the files once a
//! second, because a large database takes a moment to read. A changed and valid file is applied. A
//! faulty one is logged and counted, and the previous content stays in use. The reported status of
//! a file is in `file_status`.

use super::address_list::AddressList;
use super::database::NetworkDatabase;
use super::file_status::{NetworkFileNote, NetworkFileStatus};
use super::network_field::{CountryCode, NetworkField};
use super::network_file::{DATABASE_BYTES_MAX, LIST_BYTES_MAX, NetworkFileError};
use arc_swap::{ArcSwap, ArcSwapOption};
use evenkeel_config::settings::NetworkFileSettings;
use evenkeel_config::source::files::{FileReadError, WatchedFile, WatchedFiles};
use evenkeel_core::units::Time;
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::metrics::NETWORK_FILE_RELOADS;
use evenkeel_telemetry::registry::{Counter, Registry};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

/// The contents of the files in use. They can be read at any time, and are empty until files are
/// loaded.
#[derive(Default)]
pub struct NetworkTables {
    asn: ArcSwapOption<NetworkDatabase>,
    country: ArcSwapOption<NetworkDatabase>,
    lists: ArcSwap<HashMap<PathBuf, Arc<AddressList>>>,
}

impl NetworkTables {
    /// The AS number of an address; `None` without a database of them, or if it has none.
    #[must_use]
    pub fn asn(&self, address: IpAddr) -> Option<u32> {
        self.asn.load().as_ref().and_then(|database| database.asn(address))
    }

    /// The country of an address; `None` without a database of them, or if it has none.
    #[must_use]
    pub fn country(&self, address: IpAddr) -> Option<CountryCode> {
        self.country.load().as_ref().and_then(|database| database.country(address))
    }

    /// Whether an address is in the list of this file as it is now. No address is in a list that is
    /// not in use. A look-up takes no lock.
    #[must_use]
    pub fn is_listed(&self, path: &Path, address: IpAddr) -> bool {
        self.lists.load().get(path).is_some_and(|list| list.contains(address))
    }

    fn store(&self, content: FileContent, kind: &NetworkFileKind) {
        match (content, kind) {
            (FileContent::Database(database), NetworkFileKind::Database(field)) => {
                self.database(*field).store(Some(Arc::new(database)));
            }
            (FileContent::List(list), NetworkFileKind::List(path)) => {
                let list = Arc::new(list);
                self.lists.rcu(|lists| {
                    let mut lists = HashMap::clone(lists);
                    lists.insert(path.clone(), Arc::clone(&list));
                    lists
                });
            }
            _ => {}
        }
    }

    /// Forgets what a file that is no longer in use has said.
    fn clear(&self, kind: &NetworkFileKind) {
        match kind {
            NetworkFileKind::Database(field) => self.database(*field).store(None),
            NetworkFileKind::List(path) => {
                self.lists.rcu(|lists| {
                    let mut lists = HashMap::clone(lists);
                    lists.remove(path);
                    lists
                });
            }
        }
    }

    const fn database(&self, field: NetworkField) -> &ArcSwapOption<NetworkDatabase> {
        match field {
            NetworkField::Asn => &self.asn,
            NetworkField::Country => &self.country,
        }
    }
}

/// The use of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NetworkFileKind {
    /// A database.
    Database(NetworkField),
    /// An address list, with the path by which it is found.
    List(PathBuf),
}

impl NetworkFileKind {
    /// The name in metrics and messages.
    fn name(&self) -> String {
        match self {
            NetworkFileKind::Database(field) => field.name().to_owned(),
            NetworkFileKind::List(path) => path.display().to_string(),
        }
    }

    const fn bytes_max(&self) -> u64 {
        match self {
            NetworkFileKind::Database(_) => DATABASE_BYTES_MAX,
            NetworkFileKind::List(_) => LIST_BYTES_MAX,
        }
    }
}

/// The content of a file.
enum FileContent {
    Database(NetworkDatabase),
    List(AddressList),
}

/// A file about networks that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetworkLoadError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] FileReadError),
    /// It is faulty.
    #[error("{}:{why}", path.display())]
    Faulty {
        /// Path of the file.
        path: PathBuf,
        /// The error in it.
        why: NetworkFileError,
    },
}

fn parse(
    kind: &NetworkFileKind,
    file: &WatchedFile,
) -> Result<(FileContent, NetworkFileNote), NetworkLoadError> {
    let faulty = |why| NetworkLoadError::Faulty { path: file.path.clone(), why };
    match kind {
        NetworkFileKind::Database(field) => {
            let database = NetworkDatabase::parse(*field, &file.bytes).map_err(faulty)?;
            let note = NetworkFileNote::of_database(&database, file.modified);
            Ok((FileContent::Database(database), note))
        }
        NetworkFileKind::List(_) => {
            let list = AddressList::parse_or_empty(&file.bytes).map_err(faulty)?;
            let note = NetworkFileNote::of_list(&list, file.modified);
            Ok((FileContent::List(list), note))
        }
    }
}

/// A file that was read and is not in use yet.
pub(super) struct ReadNetworkFile {
    kind: NetworkFileKind,
    path: PathBuf,
    files: WatchedFiles,
    content: Option<FileContent>,
    /// The contents of the file.
    pub note: NetworkFileNote,
}

impl ReadNetworkFile {
    /// Reads a file.
    pub fn read((kind, path): (NetworkFileKind, PathBuf)) -> Result<Self, NetworkLoadError> {
        let mut files = WatchedFiles::new(vec![path.clone()]).with_bytes_max(kind.bytes_max());
        let read = files.read()?;
        let parsed = read.first().map(|file| parse(&kind, file)).transpose()?;
        let (content, note) =
            parsed.map(|(content, note)| (Some(content), note)).unwrap_or_default();
        Ok(ReadNetworkFile { kind, path, files, content, note })
    }

    /// Stores the content, and follows the file from now on.
    fn apply(self, tables: &NetworkTables, registry: &Registry) -> LiveNetworkFile {
        let ReadNetworkFile { kind, path, files, content, note } = self;
        let of = kind.name();
        let reloads =
            ["ok", "failed"].map(|how| registry.counter(&NETWORK_FILE_RELOADS, &[&of, how]));
        let mut status = NetworkFileStatus::new(of, path.clone(), registry);
        content.into_iter().for_each(|content| tables.store(content, &kind));
        status.show(note);
        LiveNetworkFile { kind, path, files, status, reloads }
    }
}

/// The kinds and paths of all files in the settings.
pub(super) fn kinds(settings: &NetworkFileSettings) -> Vec<(NetworkFileKind, PathBuf)> {
    let database = |field, path: &Option<PathBuf>| {
        path.clone().map(|path| (NetworkFileKind::Database(field), path))
    };
    let databases = [
        database(NetworkField::Asn, &settings.asn),
        database(NetworkField::Country, &settings.country),
    ];
    let mut lists: Vec<PathBuf> = settings.lists.clone();
    lists.sort_unstable();
    lists.dedup();
    let lists = lists.into_iter().map(|path| (NetworkFileKind::List(path.clone()), path));
    databases.into_iter().flatten().chain(lists).collect()
}

/// A file in use.
struct LiveNetworkFile {
    kind: NetworkFileKind,
    path: PathBuf,
    files: WatchedFiles,
    status: NetworkFileStatus,
    /// Counters of successful and failed reloads.
    reloads: [Counter; 2],
}

impl LiveNetworkFile {
    fn take(
        &mut self,
        read: &[WatchedFile],
        tables: &NetworkTables,
    ) -> Result<(), NetworkLoadError> {
        let Some(file) = read.first() else { return Ok(()) };
        let (content, note) = parse(&self.kind, file)?;
        tables.store(content, &self.kind);
        self.status.show(note);
        Ok(())
    }

    fn look(&mut self, tables: &NetworkTables, now: Time) {
        if let Some(read) = self.files.look() {
            let taken = self.take(&read, tables);
            self.reloads[usize::from(taken.is_err())].increment(1);
            let (of, file) = (self.kind.name(), self.path.display());
            match taken {
                Ok(()) => {
                    let networks = self.status.note().networks;
                    tracing::info!(
                        target: "evenkeel::networks", of, %file, networks,
                        "file about networks reloaded"
                    );
                }
                Err(error) => refused(&error),
            }
        }
        self.status.tell_age(now);
    }

    /// Resets what was shown of a file that is no longer in use.
    fn forget(&self, tables: &NetworkTables) {
        tables.clear(&self.kind);
        self.status.clear();
    }
}

/// All files in use.
pub struct LiveNetworks {
    tables: Arc<NetworkTables>,
    watch: Arc<Watch>,
    files: Vec<LiveNetworkFile>,
    /// Files that the settings name no more. Rules that are being replaced may still ask them.
    retired: Vec<LiveNetworkFile>,
}

impl LiveNetworks {
    /// No files.
    #[must_use]
    pub fn new(tables: &Arc<NetworkTables>, watch: &Arc<Watch>) -> LiveNetworks {
        let (tables, watch) = (Arc::clone(tables), Arc::clone(watch));
        LiveNetworks { tables, watch, files: Vec::new(), retired: Vec::new() }
    }

    /// Reads all files into `tables`.
    ///
    /// # Errors
    /// The first file that cannot be read or is faulty.
    pub fn load(
        settings: &NetworkFileSettings,
        tables: &Arc<NetworkTables>,
        watch: &Arc<Watch>,
    ) -> Result<LiveNetworks, NetworkLoadError> {
        let mut live = LiveNetworks::new(tables, watch);
        live.change(settings)?;
        Ok(live)
    }

    /// Applies the files that have changed, and forgets what files that are not in use have said.
    /// Must be called once a second.
    pub fn look(&mut self, now: Time) {
        for retired in std::mem::take(&mut self.retired) {
            if !self.files.iter().any(|file| file.kind == retired.kind) {
                retired.forget(&self.tables);
            }
        }
        self.files.iter_mut().for_each(|file| file.look(&self.tables, now));
    }

    /// Applies changed settings. Call it before the rules that need the new files are in force. The
    /// contents of files that are no longer named are forgotten at the next [`LiveNetworks::look`].
    ///
    /// # Errors
    /// The first new file that cannot be read or is faulty. The settings then stay as they were.
    pub fn change(&mut self, settings: &NetworkFileSettings) -> Result<(), NetworkLoadError> {
        let wanted = kinds(settings);
        let is_same = |file: &LiveNetworkFile, (kind, path): &(NetworkFileKind, PathBuf)| {
            file.kind == *kind && file.path == *path
        };
        let new = wanted.iter().filter(|named| !self.files.iter().any(|file| is_same(file, named)));
        let read = new.cloned().map(ReadNetworkFile::read).collect::<Result<Vec<_>, _>>()?;
        let before = std::mem::take(&mut self.files).into_iter();
        let (mut files, retired): (Vec<_>, Vec<_>) =
            before.partition(|file| wanted.iter().any(|named| is_same(file, named)));
        let registry = self.watch.registry();
        files.extend(read.into_iter().map(|read| read.apply(&self.tables, registry)));
        self.files = files;
        self.retired.extend(retired);
        Ok(())
    }
}

fn refused(error: &NetworkLoadError) {
    tracing::error!(
        target: "evenkeel::networks", %error,
        "file about networks refused; the previous one stays in use"
    );
}

/// Changed settings, and where the result is sent.
type NetworkChange = (NetworkFileSettings, SyncSender<Result<(), NetworkLoadError>>);

/// A thread that follows the files. Dropping it ends it.
pub struct NetworksThread(OwnedThread<SyncSender<NetworkChange>>);

impl NetworksThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn start(mut live: LiveNetworks, clock: Clock) -> io::Result<NetworksThread> {
        let (sender, changes) = mpsc::sync_channel::<NetworkChange>(1);
        let body = move || {
            loop {
                match changes.recv_timeout(Duration::from_secs(1)) {
                    // It fails only if the caller does not wait, and no caller does so.
                    Ok((settings, result)) => _ = result.send(live.change(&settings)),
                    Err(RecvTimeoutError::Timeout) => live.look(clock.now()),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        OwnedThread::start("networks", sender, body).map(NetworksThread)
    }

    /// Applies changed settings, and waits until new files have been read.
    ///
    /// # Errors
    /// The first new file that cannot be read or is faulty. The settings then stay as they were.
    pub fn change(&self, settings: NetworkFileSettings) -> Result<(), NetworkLoadError> {
        let (sender, result) = mpsc::sync_channel(1);
        // Both fail only if the thread has panicked, which is logged.
        let _ = self.0.orders.send((settings, sender));
        result.recv().unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_telemetry::metrics::{NETWORK_FILE_ENTRIES, NETWORK_FILE_TIME};
    use std::fs;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    struct Stage {
        folder: tempfile::TempDir,
        tables: Arc<NetworkTables>,
        watch: Arc<Watch>,
    }

    impl Stage {
        fn new() -> Stage {
            let folder = tempfile::tempdir().expect("a folder");
            Stage { folder, tables: Arc::default(), watch: Arc::new(Watch::new(Time::ZERO)) }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            fs::write(self.path(name), text).expect("written");
            self.path(name)
        }

        fn load(&self, settings: &NetworkFileSettings) -> Result<LiveNetworks, NetworkLoadError> {
            LiveNetworks::load(settings, &self.tables, &self.watch)
        }

        fn metric(&self, of: &str) -> [i64; 2] {
            let gauge = |metric| self.watch.registry().gauge(metric, &[of]).get();
            [gauge(&NETWORK_FILE_ENTRIES), gauge(&NETWORK_FILE_TIME)]
        }

        fn reloads(&self, of: &str) -> [u64; 2] {
            ["ok", "failed"]
                .map(|how| self.watch.registry().counter(&NETWORK_FILE_RELOADS, &[of, how]).get())
        }
    }

    const ASNS: &str = "10.0.0.0\t10.0.0.255\t64500\tDE\tX\n10.0.1.0\t10.0.1.255\t64501\tFR\tX\n";
    const LIST: &str = r#"{"creationTime": "2026-01-01T00:00:00Z", "prefixes": ["192.0.2.0/24"]}"#;

    #[test]
    fn changed_files_are_applied_and_faulty_ones_are_not() {
        let stage = Stage::new();
        let asn = stage.write("asn.tsv", ASNS);
        let settings = NetworkFileSettings { asn: Some(asn), ..NetworkFileSettings::default() };
        let mut live = stage.load(&settings).expect("a good file");
        let seen = || ["10.0.0.7", "10.0.1.7"].map(|address| stage.tables.asn(ip(address)));
        assert_eq!(seen(), [Some(64_500), Some(64_501)]);
        assert_eq!(stage.metric("asn")[0], 2);
        assert_eq!(stage.tables.country(ip("10.0.0.7")), None);
        let mut change = |text: &str| {
            stage.write("asn.tsv", text);
            (0..3).for_each(|_| live.look(Time::ZERO));
        };
        change("10.0.0.0\t10.0.0.255\t64502\tDE\tX\n");
        assert_eq!(seen(), [Some(64_502), None]);
        assert_eq!((stage.metric("asn")[0], stage.reloads("asn")), (1, [1, 0]));
        for faulty in ["", "10.0.0.0\t10.0.0.255\n", "<html>", "\x1f\u{8b}"] {
            change(faulty);
            assert_eq!(seen(), [Some(64_502), None], "{faulty}");
        }
        assert_eq!((stage.metric("asn")[0], stage.reloads("asn")), (1, [1, 4]));
        fs::remove_file(stage.path("asn.tsv")).expect("removed");
        (0..3).for_each(|_| live.look(Time::ZERO));
        assert_eq!(seen(), [Some(64_502), None]);
        stage.write("asn.tsv", ASNS);
        (0..3).for_each(|_| live.look(Time::ZERO));
        assert_eq!(seen(), [Some(64_500), Some(64_501)]);
    }

    #[test]
    fn a_list_is_found_by_its_path_and_follows_its_file() {
        let stage = Stage::new();
        let path = stage.write("robots.json", LIST);
        let listed = |address| stage.tables.is_listed(&path, ip(address));
        assert!(!listed("192.0.2.7"));
        let lists = vec![path.clone(), path.clone()];
        let settings = NetworkFileSettings { lists, ..NetworkFileSettings::default() };
        let mut live = stage.load(&settings).expect("a good file");
        assert_eq!(live.files.len(), 1);
        assert!(listed("192.0.2.7") && !listed("198.51.100.7"));
        assert!(!stage.tables.is_listed(&stage.path("other"), ip("192.0.2.7")));
        stage.write("robots.json", "198.51.100.0/24\n");
        (0..3).for_each(|_| live.look(Time::ZERO));
        assert!(listed("198.51.100.7") && !listed("192.0.2.7"));
        stage.write("robots.json", "nonsense\n");
        (0..3).for_each(|_| live.look(Time::ZERO));
        assert!(listed("198.51.100.7"), "a faulty file changes nothing");
        assert_eq!(stage.metric(&path.display().to_string()), [1, 0]);
    }

    /// An operator who unblocks the last address leaves an empty file.
    #[test]
    fn a_text_without_networks_is_an_empty_list() {
        let stage = Stage::new();
        let path = stage.write("blocked.txt", "192.0.2.7\n");
        let listed = || stage.tables.is_listed(&path, ip("192.0.2.7"));
        let settings =
            NetworkFileSettings { lists: vec![path.clone()], ..NetworkFileSettings::default() };
        let mut live = stage.load(&settings).expect("a good file");
        for empty in ["", "\n", "# nobody\n  # at all\n"] {
            stage.write("blocked.txt", "192.0.2.7\n");
            (0..3).for_each(|_| live.look(Time::ZERO));
            assert!(listed());
            stage.write("blocked.txt", empty);
            (0..3).for_each(|_| live.look(Time::ZERO));
            assert!(!listed(), "{empty:?}");
            stage.load(&settings).map(|_| ()).expect("a start with it");
        }
        stage.write("blocked.txt", r#"{"prefixes": []}"#);
        let refused = stage.load(&settings).map(|_| ()).expect_err("refused").to_string();
        assert!(refused.contains("it has no network"), "{refused}");
    }

    #[test]
    fn a_list_that_is_not_named_any_more_is_kept_until_the_rules_are_replaced() {
        let stage = Stage::new();
        let path = stage.write("ours.txt", "192.0.2.0/24\n");
        let listed = || stage.tables.is_listed(&path, ip("192.0.2.7"));
        let named = NetworkFileSettings { lists: vec![path.clone()], ..Default::default() };
        let mut live = stage.load(&named).expect("a good file");
        live.change(&NetworkFileSettings::default()).expect("no files");
        assert!(listed());
        live.change(&named).expect("a good file");
        live.look(Time::ZERO);
        assert!(listed(), "it is in use again");
        live.change(&NetworkFileSettings::default()).expect("no files");
        live.look(Time::ZERO);
        assert!(!listed());
        assert_eq!(stage.metric(&path.display().to_string()), [0, 0]);
    }

    #[test]
    fn changed_settings_replace_files_unless_a_new_one_is_faulty() {
        let stage = Stage::new();
        let asn = stage.write("asn.tsv", ASNS);
        let other = stage.write("other.tsv", "10.0.0.0\t10.0.0.255\t7\tDE\tX\n");
        let settings = |asn: Option<&PathBuf>, country: Option<&PathBuf>| NetworkFileSettings {
            asn: asn.cloned(),
            country: country.cloned(),
            lists: Vec::new(),
        };
        let mut live = LiveNetworks::new(&stage.tables, &stage.watch);
        let seen = || {
            let country = stage.tables.country(ip("10.0.0.7")).map(|code| code.to_string());
            (stage.tables.asn(ip("10.0.0.7")), country)
        };
        assert_eq!(seen(), (None, None));
        live.change(&settings(Some(&asn), Some(&asn))).expect("good files");
        let both = (Some(64_500), Some("DE".to_owned()));
        assert_eq!(seen(), both);
        let none = stage.path("none");
        for faulty in [settings(Some(&none), None), settings(Some(&other), Some(&none))] {
            live.change(&faulty).expect_err("refused");
            live.look(Time::ZERO);
            assert_eq!((seen(), live.files.len()), (both.clone(), 2), "nothing is changed");
        }
        live.change(&settings(Some(&other), None)).expect("a good file");
        live.look(Time::ZERO);
        assert_eq!((seen(), stage.metric("country")), ((Some(7), None), [0, 0]));
        live.change(&NetworkFileSettings::default()).expect("no files");
        live.look(Time::ZERO);
        assert_eq!((seen(), live.files.len()), ((None, None), 0));
    }

    #[test]
    fn faults_name_the_file_and_the_line() {
        let stage = Stage::new();
        let large = stage.path("large");
        fs::File::create(&large).and_then(|file| file.set_len(1 << 40)).expect("made");
        for (path, expected) in [
            (stage.path("none"), "none: No such file"),
            (large, "large: it has more than 268435456 bytes"),
            (stage.folder.path().to_owned(), "not a regular file"),
            (stage.write("bad.tsv", &format!("{ASNS}x\n")), "bad.tsv:3: `x` is not a range"),
            (stage.write("empty", ""), "empty: the file is empty"),
        ] {
            let settings =
                NetworkFileSettings { asn: Some(path), ..NetworkFileSettings::default() };
            let error = stage.load(&settings).map(|_| ()).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
