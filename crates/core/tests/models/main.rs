//! Compares each algorithm with a naive model that keeps the full log of events and counts it
//! afresh for every result, and with the tables of cases from the original systems.
//!
//! The models are written to be obviously right, not fast. The keys of a request and decisions over
//! several limits are tested elsewhere. Read `debt` first.

mod any_state;
mod debt;
mod fixed;
mod grid;
mod history;
mod quota;
mod sliding;
mod stonehenge;

use evenkeel_core::units::{Nanos, SECOND, Time};

/// A point in time, in seconds.
fn at(seconds: f64) -> Time {
    Time(Nanos::from_secs_f64(seconds).0)
}

/// A duration, in seconds.
fn secs(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

/// A point in time, in whole seconds.
const fn second(second: u64) -> Time {
    Time(second * SECOND)
}
