//! The state of a queue that several instances share, as `/api/top` returns it and `top` and
//! `doctor` print it.
//!
//! The values come from the queue (`evenkeel_core::queue::shared`), as the instance that answers
//! knows them.

use super::length::length;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// A queue that several instances share, as one of them knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedQueueLoad {
    /// The name of the instance that owns the queue.
    pub owner: String,
    /// Whether that is the instance that answers.
    pub owns: bool,
    /// For how long that has been the owner, in seconds, as far as the instance that answers knows.
    pub seconds: f64,
    /// The term of the owner, one higher than that of the owner before it.
    pub term: u64,
    /// The number of times that the instance that answers has taken the queue over.
    pub takeovers: u64,
    /// The maximum number of requests that the backend is sent at once, by all instances.
    pub slots: usize,
    /// Requests of all instances that wait.
    pub waiting: u64,
    /// Requests of all instances that have a slot.
    pub running: u64,
    /// The instances, the one that answers first.
    pub instances: Vec<QueueInstanceRow>,
}

/// One instance that shares a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueInstanceRow {
    /// The name of the instance among its peers.
    pub name: String,
    /// Whether it is the instance that answers.
    pub here: bool,
    /// Whether it owns the queue.
    pub owns: bool,
    /// It has sent no message for too long, so it does not take part.
    pub silent: bool,
    /// It can be reached, but has not joined: it joins in a moment, or has another owner. Known to
    /// the owner only.
    pub apart: bool,
    /// Its requests that wait, as it last said.
    pub waiting: u64,
    /// Its requests that have a slot, as it last said.
    pub running: u64,
    /// The slots that it keeps for its next requests, those in use included; `null` for the owner
    /// and where it is not known.
    pub kept: Option<usize>,
}

/// A peer that does not share the queue of this instance, although it could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApartPeer {
    /// The name of the peer.
    pub peer: String,
    /// Why it does not.
    pub why: String,
}

/// One line for people: `b:8080 does not share the queue: its version differs`.
impl fmt::Display for ApartPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not share the queue: {}", self.peer, self.why)
    }
}

impl SharedQueueLoad {
    /// The number of instances that take part.
    #[must_use]
    pub fn taking_part(&self) -> usize {
        self.instances.iter().filter(|one| !one.silent && !one.apart).count()
    }

    /// The number of instances and the owner of the queue: `one queue for 3 instances; a:8080 owns
    /// it for 5 min`.
    #[must_use]
    pub fn owner_line(&self) -> String {
        let mut text = match self.taking_part() {
            0 | 1 => "this instance shares its queue, and no other one takes part".to_owned(),
            count => {
                let owner = if self.owns { "this instance" } else { &*self.owner };
                let time = length(self.seconds);
                format!("one queue for {count} instances; {owner} owns it for {time}")
            }
        };
        for QueueInstanceRow { name, silent, apart, .. } in &self.instances {
            let _ = match (silent, apart) {
                (true, _) => write!(text, "; {name} is silent"),
                (false, true) => write!(text, "; {name} has not joined"),
                (false, false) => Ok(()),
            };
        }
        text
    }

    /// The waiting and running requests: `here 12 wait and 4 run; in all 40 wait and 12 run on 12
    /// slots`.
    #[must_use]
    pub fn requests_line(&self) -> String {
        let own = self.instances.iter().find(|one| one.here);
        let (here_wait, here_run) = own.map_or((0, 0), |own| (own.waiting, own.running));
        let SharedQueueLoad { waiting, running, slots, .. } = self;
        format!(
            "here {here_wait} wait and {here_run} run; in all {waiting} wait and {running} run on \
             {slots} slots"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, here: bool, waiting: u64) -> QueueInstanceRow {
        let name = name.to_owned();
        let (owns, silent, apart) = (false, false, false);
        QueueInstanceRow { name, here, owns, silent, apart, waiting, running: 4, kept: None }
    }

    #[test]
    fn the_lines_say_what_is_of_this_instance_and_what_of_all() {
        let mut load = SharedQueueLoad {
            owner: "a:8080".to_owned(),
            owns: false,
            seconds: 300.0,
            term: 3,
            takeovers: 0,
            slots: 12,
            waiting: 40,
            running: 12,
            instances: vec![row("b:8080", true, 12), row("a:8080", false, 14), row("c", false, 14)],
        };
        let requests = "here 12 wait and 4 run; in all 40 wait and 12 run on 12 slots";
        assert_eq!(load.owner_line(), "one queue for 3 instances; a:8080 owns it for 5 min");
        assert_eq!(load.requests_line(), requests);
        load.instances[2].silent = true;
        load.owns = true;
        assert_eq!(
            load.owner_line(),
            "one queue for 2 instances; this instance owns it for 5 min; c is silent"
        );
        load.instances[1].apart = true;
        assert_eq!(
            load.owner_line(),
            "this instance shares its queue, and no other one takes part; a:8080 has not joined; \
             c is silent"
        );
    }
}
