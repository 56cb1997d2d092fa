//! Which robot a request is of, and by what it has proven that; or which robot it only claims to
//! be.
//!
//! A robot is proven by a signature, by its address, or by the confirmed name of its host. Without
//! any of these, a request that names the robot in `User-Agent` is an impostor's. While its host
//! name is looked up, or the keys of a directory have not arrived, a request is neither. The files
//! are read and followed in `live` and `files`, and signatures are verified in `signature`. The
//! limits decide how robots and impostors are treated.

mod files;
mod live;

pub use files::RobotFileError;
pub use live::{LiveRobots, notes, start_problems};

use crate::hosts::HostPolicy;
use crate::signature::{RobotKeys, SeenNonces, SignatureFault, SignedRequest, verify};
use evenkeel_core::condition::patterns::Patterns;
use evenkeel_core::units::Time;
use evenkeel_telemetry::counts::robots::RobotCounts;
use evenkeel_telemetry::registry::Counter;
use files::RobotList;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// All robots with what proves them. Replaced as a whole when a file changes.
pub struct Robots {
    robots: Vec<RobotProofs>,
    /// The patterns of all robots. Most requests match none, which takes one search to find out.
    agents: Patterns,
    keys: RobotKeys,
    seen: Arc<SeenNonces>,
    /// In the order of [`SignatureFault::ALL`].
    faults: Vec<Counter>,
}

/// One robot.
#[derive(Clone)]
struct RobotProofs {
    name: Box<str>,
    user_agent: Patterns,
    /// Whether the name of its host can prove it.
    by_host: bool,
    lists: Arc<[Arc<RobotList>]>,
    /// Whether its keys come from a directory that has not been fetched.
    awaits_keys: bool,
    keys: usize,
    counts: RobotCounts,
    last_impostor: Arc<Mutex<Option<Impostor>>>,
}

/// A request that claimed to be a robot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impostor {
    /// The client.
    pub client: IpAddr,
    /// When it came.
    pub came: Time,
}

/// The result of the check of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RobotStanding<'a> {
    /// No robot, and it does not claim to be one; or it is not known yet.
    #[default]
    None,
    /// This robot.
    Proven(&'a str),
    /// It claims to be this robot.
    Impostor(&'a str),
}

/// What is known of a robot, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RobotReport {
    /// The name of the robot.
    pub name: String,
    /// Requests proven by a signature, by an address and by a name.
    pub proven: [u64; 3],
    /// Requests without proof.
    pub impostors: u64,
    /// The latest of them.
    pub last_impostor: Option<Impostor>,
    /// The number of networks in its address lists.
    pub networks: usize,
    /// When the oldest of the lists was made or renewed, in seconds of Unix time.
    pub lists_made: Option<u64>,
    /// The number of its keys.
    pub keys: usize,
    /// Whether its keys come from a directory that has not been fetched.
    pub awaits_keys: bool,
}

impl<'a> RobotStanding<'a> {
    /// The name of the proven robot.
    #[must_use]
    pub fn bot(self) -> Option<&'a str> {
        if let RobotStanding::Proven(name) = self { Some(name) } else { None }
    }

    /// The name of the robot that is claimed.
    #[must_use]
    pub fn impostor(self) -> Option<&'a str> {
        if let RobotStanding::Impostor(name) = self { Some(name) } else { None }
    }
}

impl Robots {
    /// The robot with a valid signature on the request. Counts the faults of other signatures.
    #[must_use]
    pub fn signed(&self, request: &SignedRequest<'_>, now: Time) -> Option<&str> {
        if self.keys.is_empty() {
            return None;
        }
        let robot = verify(request, &self.keys, now).and_then(|robot| {
            robot.iter().try_for_each(|robot| robot.use_up(&self.seen, now))?;
            Ok(robot)
        });
        match robot {
            Ok(robot) => Some(&self.robots.get(usize::from(robot?.robot))?.name),
            Err(fault) => {
                let index = SignatureFault::ALL.iter().position(|one| *one == fault);
                let counter = index.and_then(|index| self.faults.get(index));
                counter.iter().for_each(|counter| counter.increment(1));
                None
            }
        }
    }

    /// Checks a request of `client` with these lines of `User-Agent`, and counts the result. Each
    /// line can be a claim, because the backend gets them all. `signed` is the robot that has
    /// signed the request. `host` gives the verdict of the client's name, `None` while it is looked
    /// up. It is only called for clients that claim to be a robot with host names.
    pub fn standing<'r>(
        &self,
        signed: Option<&str>,
        agents: impl IntoIterator<Item = &'r [u8]>,
        client: IpAddr,
        now: Time,
        mut host: impl FnMut() -> Option<HostPolicy>,
    ) -> RobotStanding<'_> {
        if let Some(robot) = signed.and_then(|name| self.robots.iter().find(|r| *r.name == *name)) {
            robot.counts.signature.increment(1);
            return RobotStanding::Proven(&robot.name);
        }
        let mut agents = agents.into_iter();
        // A request without `User-Agent` counts as one with an empty one.
        let first = agents.next().unwrap_or_default();
        let claims = std::iter::once(first).chain(agents);
        let claims: Vec<_> = claims.filter(|agent| self.agents.matches(agent)).collect();
        let (mut claimed, mut pending) = (None, false);
        for (index, robot) in self.robots.iter().enumerate() {
            let any = robot.user_agent.given().is_empty();
            let is_meant = any || claims.iter().any(|agent| robot.user_agent.matches(agent));
            if !is_meant {
                continue;
            }
            if robot.lists.iter().any(|list| list.addresses.contains(client)) {
                robot.counts.address.increment(1);
                return RobotStanding::Proven(&robot.name);
            }
            match robot.by_host.then(&mut host) {
                Some(Some(known)) if known.robots >> index & 1 == 1 => {
                    robot.counts.host.increment(1);
                    return RobotStanding::Proven(&robot.name);
                }
                Some(None) => pending = true,
                _ => {}
            }
            pending |= robot.awaits_keys;
            claimed = claimed.or((!any).then_some(robot));
        }
        match claimed.filter(|_| !pending) {
            Some(robot) => robot.unmasked(client, now),
            None => RobotStanding::None,
        }
    }

    /// What is known of each robot.
    #[must_use]
    pub fn reports(&self) -> Vec<RobotReport> {
        self.robots.iter().map(RobotProofs::report).collect()
    }
}

impl RobotProofs {
    fn unmasked(&self, client: IpAddr, now: Time) -> RobotStanding<'_> {
        self.counts.none.increment(1);
        // Only for display, so another thread that notes one is not waited for.
        if let Some(mut last) = self.last_impostor.try_lock() {
            *last = Some(Impostor { client, came: now });
        }
        RobotStanding::Impostor(&self.name)
    }

    fn report(&self) -> RobotReport {
        let RobotCounts { signature, address, host, none } = &self.counts;
        RobotReport {
            name: self.name.to_string(),
            proven: [signature.get(), address.get(), host.get()],
            impostors: none.get(),
            last_impostor: *self.last_impostor.lock(),
            networks: self.lists.iter().map(|list| list.addresses.networks()).sum(),
            lists_made: self.lists.iter().filter_map(|list| list.note.time).min(),
            keys: self.keys,
            awaits_keys: self.awaits_keys,
        }
    }
}

#[cfg(test)]
mod tests;
