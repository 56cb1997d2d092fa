//! Waiting for a condition, with a deadline.
//!
//! The only place in the tests that sleeps: between two checks of a condition, so that the program
//! that is waited for gets the CPU.

use std::time::{Duration, Instant};

/// Longer than anything takes on a slow, busy machine. Only a failing test waits that long.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Calls `look` repeatedly until it returns a value. Panics after [`DEADLINE`].
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    try_wait_for(look).unwrap_or_else(|| panic!("waited {DEADLINE:?} for {what}"))
}

/// Calls `look` repeatedly until it returns a value. Returns `None` after [`DEADLINE`].
pub fn try_wait_for<T>(look: impl FnMut() -> Option<T>) -> Option<T> {
    try_wait_within(DEADLINE, look)
}

/// Calls `look` repeatedly until it returns a value. Returns `None` after `limit`.
pub fn try_wait_within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= end {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Calls `is_so` repeatedly until it holds. Panics after [`DEADLINE`].
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Like [`wait_for`], in a task: other tasks of the thread run between two checks.
pub async fn wait_for_async<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited {DEADLINE:?} for {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Like [`until`], in a task: other tasks of the thread run between two checks.
pub async fn until_async(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for_async(what, async || is_so().then_some(())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_awaited_and_its_absence_noticed() {
        let mut checks = 0;
        let third = wait_for("three checks", || {
            checks += 1;
            (checks == 3).then_some(checks)
        });
        assert_eq!(third, 3);
        assert_eq!(try_wait_within(PAUSE, || None::<()>), None);
    }
}
