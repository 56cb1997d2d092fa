//! Lengths of time as people read them.
//!
//! Exact lengths are numbers of seconds in the JSON of a snapshot; these words are for lines that
//! `doctor` and `top` print.

/// A number of seconds in the largest unit that suits it: s, min, h or d.
pub(super) fn length(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}
