//! What is known of robots, as `/api/top` returns it and `doctor` and the page say it.
//!
//! The values come from `identity::robots`, which decides what proves a robot.

use super::length::length;
use serde::{Deserialize, Serialize};

/// The age from which a list of addresses is called old. Publishers change theirs every few days or
/// weeks.
const OLD_SECONDS: f64 = 30.0 * 86_400.0;

/// One robot of `proxy.robots`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RobotSnapshot {
    /// The name of the robot.
    pub name: String,
    /// Requests that a signature has proven.
    pub by_signature: u64,
    /// Requests that an address has proven.
    pub by_address: u64,
    /// Requests that the name of the host has proven.
    pub by_host: u64,
    /// Requests of impostors, which claim to be this robot without proof.
    pub impostors: u64,
    /// The address of the last impostor; `null` if there was none.
    pub last_impostor: Option<String>,
    /// Seconds since the request of that impostor.
    pub last_impostor_ago: Option<f64>,
    /// The number of networks in its address lists.
    pub networks: usize,
    /// Seconds since the oldest of its address lists was made; `null` if it has none.
    pub lists_age: Option<f64>,
    /// The number of its keys.
    pub keys: usize,
    /// Whether the directory with its keys has not been fetched yet.
    #[serde(default)]
    pub awaits_keys: bool,
}

impl RobotSnapshot {
    /// How requests were proven, in words; empty if none was.
    fn proofs(&self) -> String {
        let proofs = [
            (self.by_signature, "by signature"),
            (self.by_address, "by address"),
            (self.by_host, "by name"),
        ];
        let proofs = proofs.into_iter().filter(|(count, _)| *count > 0);
        let proofs: Vec<_> = proofs.map(|(count, how)| format!("{count} {how}")).collect();
        if proofs.is_empty() { String::new() } else { format!(" ({})", proofs.join(", ")) }
    }
}

/// One line for people: `googlebot: 120 requests proven (120 by address), 7 of impostors, the last
/// from 203.0.113.7 4 min ago`.
impl std::fmt::Display for RobotSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let proven = self.by_signature + self.by_address + self.by_host;
        write!(f, "{}: {proven} requests proven{}", self.name, self.proofs())?;
        write!(f, ", {} of impostors", self.impostors)?;
        if let (Some(client), Some(ago)) = (&self.last_impostor, self.last_impostor_ago) {
            write!(f, ", the last from {client} {} ago", length(ago))?;
        }
        if self.awaits_keys {
            write!(f, "; its key directory has not been fetched yet")?;
        }
        match self.lists_age.filter(|age| *age >= OLD_SECONDS) {
            Some(age) => write!(f, "; its address list is {} old", length(age)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_proven_and_what_is_not() {
        let mut robot = RobotSnapshot {
            name: "googlebot".into(),
            by_signature: 0,
            by_address: 0,
            by_host: 0,
            impostors: 0,
            last_impostor: None,
            last_impostor_ago: None,
            networks: 0,
            lists_age: None,
            keys: 0,
            awaits_keys: false,
        };
        assert_eq!(robot.to_string(), "googlebot: 0 requests proven, 0 of impostors");
        robot.by_address = 120;
        robot.by_host = 3;
        robot.impostors = 7;
        robot.last_impostor = Some("203.0.113.7".into());
        robot.last_impostor_ago = Some(240.0);
        robot.lists_age = Some(2_000_000.0);
        let line = "googlebot: 123 requests proven (120 by address, 3 by name), 7 of impostors, \
                    the last from 203.0.113.7 4 min ago";
        assert_eq!(robot.to_string(), line);
        robot.lists_age = Some(3_500_000.0);
        assert_eq!(robot.to_string(), format!("{line}; its address list is 41 d old"));
    }
}
