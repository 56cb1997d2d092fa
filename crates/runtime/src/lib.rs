//! The clock and the threads of the program.
//!
//! Nothing below the doors reads a clock or starts a thread in another way, so a test that passes
//! its own time in reaches everything. `clock` reads time, `thread` starts a named thread and waits
//! for its end.

pub mod clock;
pub mod thread;
