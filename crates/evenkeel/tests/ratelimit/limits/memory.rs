//! Memory used by counters, and the effect of a flood of descriptors on them.

use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_core::windows::{Hit, WindowCounters, WindowLength, WindowPolicy};

const NOW: Time = Time(7_200 * SECOND);

fn key(n: u64) -> KeyHash {
    let mut hasher = KeyHasher::new(&KeySeed([9; 16]));
    hasher.part(&n.to_le_bytes());
    hasher.finish()
}

fn count(windows: &WindowCounters, n: u64, hits: u32) -> u32 {
    let mut hit = [Hit::new(key(n), WindowLength::Seconds(3_600).window(NOW), 1_000, hits)];
    windows.count(&mut hit, &mut Vec::new(), WindowPolicy::default(), NOW);
    hit[0].after
}

#[test]
fn in_a_large_table_too_the_heavy_outlive_a_flood() {
    let windows = WindowCounters::new(20_000);
    (0..100).for_each(|n| _ = count(&windows, n, 50));
    let bytes = windows.table().bytes();
    (1_000..301_000).for_each(|n| _ = count(&windows, n, 1));
    assert!((0..100).all(|n| count(&windows, n, 0) == 50));
    assert_eq!(windows.table().bytes(), bytes);
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("a figure");
    let pages: u64 = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4_096
}

/// `cargo test -p evenkeel --test ratelimit -- --ignored --nocapture bytes_per`
#[test]
#[ignore = "prints figures for docs/performance.md"]
fn bytes_per_live_counter() {
    for room in [1_000_000_u64, 10_000_000] {
        for percent in [50, 80, 100] {
            let before = resident();
            let windows = WindowCounters::new(room as usize);
            let live = room / 100 * percent;
            (0..live).for_each(|n| _ = count(&windows, n, 1));
            let mut counts = 0_u64;
            windows.for_each(NOW, |_, _| counts += 1);
            let (table, grown) = (windows.table().bytes() as f64, resident() - before);
            println!(
                "{room} room, {live} came, {counts} live: {:.1} bytes of table and {:.1} of the \
                 process for each",
                table / counts as f64,
                grown as f64 / counts as f64
            );
        }
    }
}
