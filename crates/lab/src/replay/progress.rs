//! How far a replay is, as one line on the terminal: a bar, the share of bytes that are read, the
//! pace and the time that is left.
//!
//! The line is drawn over itself a few times a second, and wiped at the end.

use evenkeel_core::units::{Nanos, Time};
use evenkeel_runtime::clock::Clock;
use std::io::{self, Write};

/// The least time between two drawings.
const EVERY: Nanos = Nanos::from_millis(200);
/// The length of the bar, in characters.
const BAR: usize = 40;

pub struct Progress {
    /// The size of all logs, in bytes.
    bytes: u64,
    clock: Clock,
    begun: Time,
    drawn: Time,
}

impl Progress {
    /// A line for logs of `bytes` bytes; nothing is drawn yet.
    pub fn new(bytes: u64) -> Progress {
        let clock = Clock::start();
        let now = clock.now();
        Progress { bytes, clock, begun: now, drawn: now }
    }

    /// Draws the line where `done` bytes are read, unless it was drawn a moment ago.
    pub fn at(&mut self, done: u64) {
        let now = self.clock.now();
        if now.since(self.drawn) >= EVERY {
            self.drawn = now;
            let text = line(done, self.bytes, now.since(self.begun).as_secs_f64());
            // A terminal that is gone needs no line.
            let _ = write!(io::stderr(), "\r{text}\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn > self.begun {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: u64, bytes: u64, seconds: f64) -> String {
    let share = (done as f64 / bytes.max(1) as f64).min(1.0);
    let filled = (share * BAR as f64) as usize;
    let bar = "#".repeat(filled) + &"-".repeat(BAR - filled);
    let pace = done as f64 / seconds.max(1e-3);
    let left = bytes.saturating_sub(done) as f64 / pace.max(1.0);
    let (percent, pace) = (share * 100.0, pace / 1e6);
    format!("{bar} {percent:.0} %  {pace:.1} MB/s  {left:.0} s left")
}

#[test]
fn the_line_says_how_far_it_is_how_fast_and_for_how_long() {
    let half = "#".repeat(20) + &"-".repeat(20);
    assert_eq!(line(50_000_000, 100_000_000, 4.0), half + " 50 %  12.5 MB/s  4 s left");
    assert_eq!(line(9, 7, 1.0), "#".repeat(40) + " 100 %  0.0 MB/s  0 s left");
    assert!(line(0, 0, 0.0).ends_with(" 0 %  0.0 MB/s  0 s left"));
}
