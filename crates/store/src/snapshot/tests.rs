use super::*;
use evenkeel_config::parse;
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Nanos, SECOND};
use evenkeel_core::windows::{Hit, WindowLength, WindowPolicy};
use evenkeel_engine::Engine;
use std::fs;
use std::path::Path;

const SEED: KeySeed = KeySeed([9; 16]);
const LIMITS: &str = "proxy: {cpus: 1, limits: [\
    {name: ip, by: ip/32, share: 50%, burst: 30s}, \
    {name: agent, by: [user-agent, 'header:x-a', path:2], share: 10%, burst: 30s}, \
    {name: host, by: host, window: 10s, max: 1s}]}";

/// An engine with its metrics, at a clock that has just started.
struct Stage {
    clock: Clock,
    watch: Arc<Watch>,
    accounts: SnapshotTables,
}

impl Stage {
    fn new(text: &str) -> Stage {
        let config = parse("t.yaml", text.as_bytes(), 4.0).expect("a configuration");
        let proxy = config.settings.proxy.expect("a proxy");
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let engine = Engine::new(&proxy, 1, SEED, clock, Arc::clone(&watch));
        let windows = Some(("ratelimit", Arc::new(WindowCounters::new(100))));
        Stage {
            clock,
            watch,
            accounts: SnapshotTables { engines: vec![("proxy", engine)], windows },
        }
    }

    /// Puts the key `hash` of the limit at `index` in debt, so that it is full after `seconds`.
    fn owe(&self, index: usize, hash: u64, seconds: u64) {
        let now = self.clock.now();
        let full_at = now.plus(Nanos::from_secs(seconds));
        let engine = &self.accounts.engines[0].1;
        let was = engine.held().limits()[index].algorithm.clone();
        let hash = KeyHash::from_bits(hash);
        assert!(engine.held().restore(index, &was, hash, &[full_at.0], now.minus(Nanos(1))));
    }

    /// The number of seconds until the key is full; `None` if it is absent.
    fn full_after(&self, index: usize, hash: u64) -> Option<f64> {
        let state =
            self.accounts.engines[0].1.held().tables()[index].take(KeyHash::from_bits(hash)).get(0);
        (state > 0).then(|| Time(state).since(self.clock.now()).as_secs_f64())
    }

    fn scribe(&self, path: &Path) -> SnapshotScribe {
        SnapshotScribe {
            path: path.to_owned(),
            seed: SEED,
            accounts: self.accounts.clone(),
            counts: StateCounts::new(self.watch.registry()),
            clock: self.clock,
            complaints: WarningThrottle::default(),
        }
    }

    /// Writes a snapshot as of `now`. Returns whether that worked.
    fn write(&self, path: &Path, now: Time) -> bool {
        !self.scribe(path).write(now, false)
    }

    fn take_over(&self, path: &Path) -> bool {
        let found = find(&kept_in(path));
        let there = found.is_some();
        if let Some(found) = found {
            assert!(found.seed() == SEED);
            found.restore(&self.accounts, &self.watch, self.clock.now());
        }
        there
    }

    fn metric(&self, line: &str) -> bool {
        let text = evenkeel_telemetry::prometheus::text(self.watch.registry(), &[]);
        text.lines().any(|found| found == line)
    }
}

fn kept_in(path: &Path) -> settings::StateSettings {
    settings::StateSettings {
        file: Some(path.to_owned()),
        every: Duration::from_secs(5),
        keys_max: None,
    }
}

fn near(found: Option<f64>, expected: f64) {
    assert!(found.is_some_and(|found| (found - expected).abs() < 5.0), "{found:?} {expected}");
}

#[test]
fn debts_outlive_the_program_and_are_paid_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    assert!(!before.take_over(&path), "there is none yet");
    before.owe(0, 5, 1_000);
    before.owe(0, 6, 0);
    assert!(before.full_after(0, 6).is_some());
    before.owe(1, 5, 500);
    assert!(before.write(&path, before.clock.now()));
    assert!(before.metric("evenkeel_state_keys 2"), "who owes nothing is not kept");

    let after = Stage::new(LIMITS);
    assert!(after.take_over(&path));
    near(after.full_after(0, 5), 1_000.0);
    near(after.full_after(1, 5), 500.0);
    assert_eq!(after.full_after(0, 6), None);
    assert!(after.metric("evenkeel_state_restored_keys 2"));
}

#[test]
fn a_changed_configuration_takes_over_what_still_means_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    before.owe(0, 5, 1_000);
    before.owe(1, 5, 1_000);
    assert!(before.write(&path, before.clock.now()));
    for (change, to, ip, agent) in [
        ("share: 50%, burst: 30s", "share: 100%, burst: 9s", Some(500.0), Some(1_000.0)),
        ("name: ip", "name: pi", None, Some(1_000.0)),
        ("ip/32", "[ip/32, ip6/128]", None, Some(1_000.0)),
        ("share: 50%, burst: 30s", "rate: 1/s", None, Some(1_000.0)),
        ("path:2", "path:3", Some(1_000.0), None),
        ("header:x-a", "header:x-b", Some(1_000.0), None),
    ] {
        let after = Stage::new(&LIMITS.replacen(change, to, 1));
        assert!(after.take_over(&path));
        for (index, expected) in [(0, ip), (1, agent)] {
            let found = after.full_after(index, 5);
            match expected {
                Some(expected) => near(found, expected),
                None => assert_eq!(found, None, "{change} to {to}"),
            }
        }
    }
}

#[test]
fn blocks_are_kept_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    let (hash, now) = (KeyHash::from_bits(77), before.clock.now());
    let window = before.accounts.engines[0].1.held().limits()[2].algorithm.clone();
    let mut state = vec![0; window.words()];
    window.charge(&mut state, evenkeel_core::units::Cost(SECOND), now, now);
    assert!(window.wait(&state, evenkeel_core::units::Cost::ZERO, now) > Nanos::ZERO, "a block");
    assert!(before.accounts.engines[0].1.held().restore(2, &window, hash, &state, now));
    assert!(before.write(&path, now));
    let after = Stage::new(LIMITS);
    assert!(after.take_over(&path));
    let held = after.accounts.engines[0].1.held();
    held.tables()[2].take(hash).with(|found| assert_eq!(found, state));
}

/// Counts hits in a window of a day, and returns the count.
fn hit(windows: &WindowCounters, now: Time) -> u32 {
    let window = WindowLength::Seconds(86_400).window(now);
    let mut hits = [Hit::new(KeyHash::from_bits(5), window, 100, 3)];
    windows.count(&mut hits, &mut Vec::new(), WindowPolicy::default(), now);
    hits[0].after
}

#[test]
fn counters_of_the_rate_limit_service_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    let now = before.clock.now();
    let windows = |stage: &Stage| Arc::clone(&stage.accounts.windows.as_ref().expect("some").1);
    assert_eq!(hit(&windows(&before), now), 3);
    assert!(before.write(&path, now));
    assert!(before.metric("evenkeel_state_keys 1"));
    let after = Stage::new(LIMITS);
    assert!(after.take_over(&path));
    assert_eq!(hit(&windows(&after), now), 6);
    // A process without the service restores the rest.
    let without = Stage::new(LIMITS);
    let without =
        Stage { accounts: SnapshotTables { windows: None, ..without.accounts.clone() }, ..without };
    assert!(without.take_over(&path));
    assert!(without.metric("evenkeel_state_restored_keys 0"));
    // A snapshot from the future: the clock was set back since.
    assert!(before.write(&path, now.plus(Nanos::from_secs(10))));
    let back = Stage::new(LIMITS);
    assert!(back.take_over(&path));
    assert_eq!(hit(&windows(&back), now), 3);
}

#[test]
fn counters_whose_keys_are_made_otherwise_are_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    let windows = |stage: &Stage| Arc::clone(&stage.accounts.windows.as_ref().expect("some").1);
    let now = before.clock.now();
    hit(&windows(&before), now);
    assert!(before.write(&path, now));
    let mut whole = fs::read(&path).expect("written");
    let form = evenkeel_engine::windows::KEY_FORM.as_bytes();
    let at = whole.windows(form.len()).position(|part| part == form).expect("the form of keys");
    whole[at] ^= 1;
    let content = whole.len() - size_of::<u32>();
    let sum = crc32fast::hash(&whole[..content]);
    whole[content..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, whole).expect("written");
    let after = Stage::new(LIMITS);
    assert!(after.take_over(&path));
    assert!(after.metric("evenkeel_state_restored_keys 0"));
    assert_eq!(hit(&windows(&after), now), 3);
}

/// A machine without a battery-backed clock starts in 1970. Debts must not last for decades then.
#[test]
fn a_clock_that_was_set_back_makes_no_debt_longer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let ahead = Nanos::from_secs(1_000_000);
    let before = Stage::new(LIMITS);
    before.owe(0, 5, 1_000_060);
    assert!(before.write(&path, before.clock.now().plus(ahead)));
    let after = Stage::new(LIMITS);
    assert!(after.take_over(&path));
    near(after.full_after(0, 5), 60.0);
}

#[test]
fn what_is_damaged_is_put_aside_and_the_next_one_is_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    before.owe(0, 5, 1_000);
    assert!(before.write(&path, before.clock.now()));
    let whole = fs::read(&path).expect("written");
    for damage in [&whole[..whole.len() - 1], &whole[..40], b"", b"hello", &[0xff; 1_000]] {
        fs::write(&path, damage).expect("written");
        let after = Stage::new(LIMITS);
        assert!(!after.take_over(&path));
        assert_eq!(after.full_after(0, 5), None);
        assert!(!path.exists());
        assert_eq!(fs::read(folder.path().join("state.refused")).expect("aside"), damage);
        assert!(after.write(&path, after.clock.now()));
        assert!(after.take_over(&path));
    }
}

#[test]
fn what_cannot_be_written_is_counted_and_leaves_the_last_good_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let stage = Stage::new(LIMITS);
    assert!(stage.write(&path, stage.clock.now()));
    let whole = fs::read(&path).expect("written");
    // A directory at the path of the temporary file.
    fs::create_dir(folder.path().join("state.tmp")).expect("made");
    assert!(!stage.write(&path, stage.clock.now()));
    assert!(stage.metric("evenkeel_state_writes_total{result=\"failed\"} 1"));
    assert_eq!(fs::read(&path).expect("still there"), whole);
    fs::remove_dir(folder.path().join("state.tmp")).expect("removed");
    assert!(stage.write(&path, stage.clock.now()));
    assert!(stage.metric("evenkeel_state_writes_total{result=\"ok\"} 2"));
    assert!(!folder.path().join("state.tmp").exists());
    assert!(!stage.write(Path::new("/nowhere/state"), stage.clock.now()));
}

#[test]
fn what_is_no_plain_file_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let pipe = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(pipe.success());
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).expect("made");
    let stage = Stage::new(LIMITS);
    for path in [path.as_path(), &directory, Path::new("/dev/full")] {
        let before = fs::metadata(path).expect("there").file_type();
        assert!(!stage.take_over(path));
        assert!(!stage.write(path, stage.clock.now()));
        assert_eq!(fs::metadata(path).expect("there").file_type(), before);
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing beside them");
}

/// The longest time that a crash can lose: from the start of the last complete snapshot to just
/// before the next one is complete.
#[test]
fn a_crash_loses_no_more_than_every() {
    for millis in [100, 300, 5_000, 86_400_000] {
        let every = Duration::from_millis(millis);
        for took in [0, 1, 10, 20, 25].map(|percent| every * percent / 100) {
            let lost = took + pause(every, took) + took;
            assert!(lost <= every, "{lost:?} of {every:?}, where one takes {took:?}");
        }
        // On a slower disk a crash loses the time that two snapshots take, and half of `every`.
        for took in [every / 3, every, every * 10] {
            assert_eq!(took + pause(every, took) + took, took * 2 + every / 2);
        }
    }
}

/// `/var/lib/evenkeel/state` may lie on another disk.
#[test]
fn a_link_stays_a_link_and_leads_to_the_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("disk")).expect("made");
    let [link, file] = ["state", "disk/kept"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("disk/kept", &link).expect("a link");
    let before = Stage::new(LIMITS);
    before.owe(0, 5, 1_000);
    // At first the link leads to no file.
    for _ in 0..2 {
        assert!(before.write(&link, before.clock.now()));
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert!(fs::symlink_metadata(&file).expect("there").is_file());
    }
    assert!(Stage::new(LIMITS).take_over(&link));
    fs::write(&file, b"damaged").expect("written");
    assert!(!Stage::new(LIMITS).take_over(&link));
    assert!(folder.path().join("disk/kept.refused").exists());
}

#[test]
fn only_the_owner_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let stage = Stage::new(LIMITS);
    assert!(stage.write(&path, stage.clock.now()));
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_last_snapshot_is_written_when_the_program_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let stage = Stage::new(LIMITS);
    let settings = settings::StateSettings { every: Duration::from_secs(3_600), ..kept_in(&path) };
    let running = start(&settings, SEED, stage.accounts.clone(), &stage.watch, stage.clock);
    stage.owe(0, 5, 1_000);
    drop(running.expect("a thread"));
    let after = Stage::new(LIMITS);
    assert!(after.take_over(&path));
    near(after.full_after(0, 5), 1_000.0);
    let nowhere = settings::StateSettings { file: None, ..settings };
    let none = start(&nowhere, SEED, SnapshotTables::default(), &stage.watch, stage.clock)
        .expect("nothing");
    assert!(none.is_none());
}

/// The default limits, and a queue that remembers clients.
const KNOWN: &str = "proxy: {cpus: 1, queue: {known: auto}}";

impl Stage {
    /// The number of clients that the queue remembers.
    fn clients(&self) -> usize {
        let history = self.accounts.engines[0].1.client_history();
        let mut count = 0;
        history.iter().for_each(|history| history.for_each(self.clock.now(), |_, _| count += 1));
        count
    }

    /// Lets the queue remember clients that were served twice.
    fn serve_twice(&self, clients: u64) {
        let history = self.accounts.engines[0].1.client_history().expect("remembered");
        let now = self.clock.now();
        // The low bits are the number of requests.
        let state = [now.0, now.0 >> 20 << 20 | 2];
        for n in 1..=clients {
            let key = KeyHash::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(history.restore(key, &state, Nanos::ZERO, now));
        }
    }
}

#[test]
fn clients_that_were_here_are_known_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(KNOWN);
    before.serve_twice(300);
    before.owe(0, 5, 1_000);
    assert!(before.write(&path, before.clock.now()));
    let after = Stage::new(KNOWN);
    assert!(after.take_over(&path));
    assert_eq!((before.clients(), after.clients()), (300, 300));
    near(after.full_after(0, 5), 1_000.0);
    assert!(after.metric("evenkeel_state_restored_keys 1"), "clients are no debts");
    // A queue that does not distinguish clients drops them, and no debt.
    let without = Stage::new("proxy: {cpus: 1, queue: {known: off}}");
    assert!(without.take_over(&path));
    assert_eq!(without.clients(), 0);
    near(without.full_after(0, 5), 1_000.0);
}

#[test]
fn a_snapshot_of_the_first_version_is_still_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(LIMITS);
    before.owe(0, 5, 1_000);
    assert!(before.write(&path, before.clock.now()));
    let mut bytes = fs::read(&path).expect("written");
    let version = |bytes: &mut Vec<u8>, version: u8| {
        bytes[8] = version;
        let sum = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..sum]).to_le_bytes();
        bytes[sum..].copy_from_slice(&crc);
    };
    version(&mut bytes, 1);
    fs::write(&path, &bytes).expect("written");
    let after = Stage::new(&LIMITS.replace("cpus: 1", "cpus: 1, queue: {known: auto}"));
    assert!(after.take_over(&path));
    near(after.full_after(0, 5), 1_000.0);
    assert_eq!(after.clients(), 0);
    version(&mut bytes, 3);
    fs::write(&path, &bytes).expect("written");
    assert!(!Stage::new(KNOWN).take_over(&path));
}

#[test]
fn damaged_clients_refuse_the_snapshot_and_the_next_one_is_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let before = Stage::new(KNOWN);
    before.serve_twice(300);
    assert!(before.write(&path, before.clock.now()));
    let mut bytes = fs::read(&path).expect("written");
    // The clients are the last but the counters of windows.
    let place = bytes.len() - 1_000;
    bytes[place] ^= 1;
    fs::write(&path, &bytes).expect("written");
    let after = Stage::new(KNOWN);
    assert!(!after.take_over(&path));
    assert_eq!(after.clients(), 0);
    assert_eq!(fs::read(folder.path().join("state.refused")).expect("aside"), bytes);
    after.serve_twice(7);
    assert!(after.write(&path, after.clock.now()));
    let next = Stage::new(KNOWN);
    assert!(next.take_over(&path));
    assert_eq!(next.clients(), 7);
}

/// Prints how long a million debts take, for docs/performance.md.
#[test]
#[ignore = "the long suite runs it; in a release build the figures mean something"]
fn a_million_debts_are_written_and_taken_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let text = "proxy: {cpus: 1, limits: [{name: ip, by: ip/32, share: 50%, keys_max: 1400000}]}";
    let before = Stage::new(text);
    for n in 1..=1_000_000_u64 {
        before.owe(0, n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 3_600);
    }
    let begun = before.clock.now();
    assert!(before.write(&path, begun));
    let wrote = before.clock.now().since(begun);
    let after = Stage::new(text);
    let begun = after.clock.now();
    assert!(after.take_over(&path));
    let took = after.clock.now().since(begun);
    let bytes = fs::metadata(&path).expect("there").len();
    println!("written in {wrote}, taken over in {took}, {bytes} bytes");
    let held = after.accounts.engines[0].1.held();
    assert!(held.tables()[0].used() > 990_000, "{}", held.tables()[0].used());
}

/// Prints how long a request for a bucket waits while snapshots are written without a pause.
#[test]
#[ignore = "the long suite runs it; in a release build the figures mean something"]
fn buckets_are_to_be_had_while_a_snapshot_is_written() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    for keys in [4_096_u64, 1_400_000] {
        let limit = format!("{{name: ip, by: ip/32, share: 50%, keys_max: {keys}}}");
        let stage = Stage::new(&format!("proxy: {{cpus: 1, limits: [{limit}]}}"));
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (1..=keys * 3 / 4).for_each(|n| stage.owe(0, hash(n), 3_600));
        let held = stage.accounts.engines[0].1.held();
        let waits = || {
            let wait = |n: u64| {
                let before = stage.clock.now();
                drop(held.tables()[0].take(KeyHash::from_bits(hash(n % keys))));
                stage.clock.now().since(before).0
            };
            let mut waits: Vec<u64> = (0..1_000_000).map(wait).collect();
            waits.sort_unstable();
            [500_000, 990_000, 999_000, 999_990].map(|at| waits[at])
        };
        let alone = waits();
        let (stop, mut written) = (AtomicBool::new(false), 0);
        let beside = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut written = 0;
                while !stop.load(Relaxed) {
                    assert!(stage.write(&path, stage.clock.now()));
                    written += 1;
                }
                written
            });
            let beside = waits();
            stop.store(true, Relaxed);
            written = writer.join().expect("it writes");
            beside
        });
        println!("{keys} keys, ns at 50, 99, 99.9 and 99.999 %");
        println!("alone {alone:?}, beside {written} snapshots {beside:?}");
        assert!(written > 0);
    }
}
