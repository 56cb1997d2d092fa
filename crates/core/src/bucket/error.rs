//! The error of an algorithm that cannot be made with the given parameters.
//!
//! It is below all algorithms, so that they do not depend on the list of them.

use core::fmt;

/// Invalid parameters of an algorithm. They come from the configuration; no algorithm was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmError {
    /// The window is not a whole number of seconds, or it is too short or too long.
    Window,
    /// The maximum of a window is zero.
    Max,
    /// The burst of a history is zero or more than [`super::history::BURST_MAX`] requests.
    Burst,
    /// The interval between two requests is zero, or so long that the window overflows (centuries).
    Interval,
}

impl fmt::Display for AlgorithmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AlgorithmError::Window => "`window` must be whole seconds, from 1s to 30d",
            AlgorithmError::Max => {
                "`max` must be above zero; otherwise every client would be blocked immediately"
            }
            AlgorithmError::Burst => "`burst` of a history must be from 1 to 255 requests",
            AlgorithmError::Interval => {
                "the rate of a history must leave from 1ns to centuries between"
            }
        })
    }
}

impl core::error::Error for AlgorithmError {}
