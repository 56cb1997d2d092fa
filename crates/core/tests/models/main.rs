//! Each algorithm against a naive one that keeps the full log of events and counts it afresh for
//! every answer, and against the tables of cases that the original systems gave us.
//!
//! The naive ones are written to be obviously right, never to be fast. What a request's keys are
//! and how several limits decide together is tested elsewhere. Read `debt` first.

mod any_state;
mod debt;
mod fixed;
mod grid;
mod history;
mod sliding;
mod stonehenge;

use evenkeel_core::units::{Nanos, SECOND, Time};

/// A moment, in seconds.
fn at(seconds: f64) -> Time {
    Time(Nanos::from_secs_f64(seconds).0)
}

/// A length of time, in seconds.
fn secs(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

/// A moment, in whole seconds.
const fn second(second: u64) -> Time {
    Time(second * SECOND)
}
