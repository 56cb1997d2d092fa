//! The errors of one rule file: the first of them, and the number of the others.
//!
//! A file can have an error in each of its millions of nodes. The bound keeps the memory and the
//! log small; the number shows that the list is incomplete.

use evenkeel_config::fault::{ConfigFault, ConfigFaults, TextPlace};

/// The maximum number of errors that are kept for a file.
const FAULTS_MAX: usize = 100;

/// The errors of one file, in the order in which they are found.
#[derive(Default)]
pub struct RuleFaults {
    kept: Vec<ConfigFault>,
    left_out: usize,
}

impl RuleFaults {
    /// Adds an error; if there are [`FAULTS_MAX`] others, it is only counted. An error that a YAML
    /// alias repeats is added once.
    pub fn push(&mut self, fault: ConfigFault) {
        if self.kept.contains(&fault) {
            return;
        }
        match self.kept.len() < FAULTS_MAX {
            true => self.kept.push(fault),
            false => self.left_out += 1,
        }
    }

    /// The errors of the file named `file`, sorted by place; `None` if it has none.
    pub fn finish(self, file: &str) -> Option<ConfigFaults> {
        if self.kept.is_empty() {
            return None;
        }
        let mut all = ConfigFaults::new(file, self.kept);
        if self.left_out > 0 {
            let what = format!("and {} more errors", self.left_out);
            all.faults.push(ConfigFault::new(TextPlace::default(), what));
        }
        Some(all)
    }
}
