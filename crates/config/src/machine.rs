//! What defaults depend on: the CPUs and the memory that this process may use.
//!
//! Shares of limits refer to the CPUs (`cpus`), and the number of keys that a limit remembers
//! follows the memory (`memory`).

use crate::{cpus, memory};

/// The bounds of [`Machine::keys_max`].
pub const KEYS_DEFAULT_MIN: usize = 65_536;
/// The upper bound.
pub const KEYS_DEFAULT_MAX: usize = 1_048_576;
/// The number of keys if the memory is not known.
pub const KEYS_DEFAULT: usize = 262_144;
/// The memory for which a limit gets one key more, in bytes. A key takes 24, so a limit takes at
/// most 1.2 % of the memory, and the three default limits 3.5 %.
pub const MEMORY_PER_KEY: u64 = 2_048;
/// Defaults are multiples of this, so that they do not change with every kernel.
const KEYS_STEP: u64 = 65_536;

/// What a process may use of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// CPU-seconds per second.
    pub cpus: f64,
    /// Memory in bytes; `None` if it is not known.
    pub memory: Option<u64>,
}

impl Machine {
    /// The machine of this process, or less if its cgroup has limits.
    #[must_use]
    pub fn here() -> Machine {
        Machine { cpus: cpus::available(), memory: memory::available() }
    }

    /// The default number of keys of a limit.
    #[must_use]
    pub fn keys_max(self) -> usize {
        let Some(memory) = self.memory else { return KEYS_DEFAULT };
        let keys = memory / MEMORY_PER_KEY / KEYS_STEP * KEYS_STEP;
        usize::try_from(keys).unwrap_or(usize::MAX).clamp(KEYS_DEFAULT_MIN, KEYS_DEFAULT_MAX)
    }
}

/// A machine of which only the CPUs are known.
impl From<f64> for Machine {
    fn from(cpus: f64) -> Machine {
        Machine { cpus, memory: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_memory_between_two_bounds() {
        const MIB: u64 = 1 << 20;
        let keys = |mib: u64| Machine { cpus: 1.0, memory: Some(mib * MIB) }.keys_max();
        assert_eq!([0, 64, 128, 191].map(keys), [65_536; 4]);
        assert_eq!([256, 512, 1_024].map(keys), [131_072, 262_144, 524_288]);
        // A machine sold with a gibibyte has somewhat less.
        assert_eq!(keys(970), 458_752);
        assert_eq!([2_048, 4_096, 1 << 40].map(keys), [1_048_576; 3]);
        assert_eq!(Machine::from(1.0).keys_max(), KEYS_DEFAULT);
        assert!(Machine::here().memory.is_some_and(|memory| memory > 16 * MIB));
    }
}
