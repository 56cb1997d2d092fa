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

/// The figures of docs/performance.md: how many windows a table remembers, by the part of its room
/// that came.
#[test]
#[ignore = "takes half a gigabyte and a minute"]
fn bytes_per_live_counter() {
    for (room, remembered) in
        [(1_000_000, [499_526, 790_639, 967_420]), (10_000_000, [4_995_603, 7_907_467, 9_676_071])]
    {
        for (percent, remembered) in [50, 80, 100].into_iter().zip(remembered) {
            let windows = WindowCounters::new(room as usize);
            (0..room / 100 * percent).for_each(|n| _ = count(&windows, n, 1));
            let mut live = 0_u64;
            windows.for_each(NOW, |_, _| live += 1);
            assert_eq!(live, remembered, "{percent} % of {room}");
            let bytes = windows.table().bytes() as f64 / room as f64;
            assert!((23.9..24.1).contains(&bytes), "{bytes} for each of {room}");
        }
    }
}
