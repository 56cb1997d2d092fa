//! The robots of an engine, and which of them a request is of.
//!
//! The proof of a robot is checked in `identity::robots`. A door verifies signatures, because they
//! cover more of a request than the engine knows; it states the signer as the fact `bot`.

use crate::engine::Engine;
use crate::lane::EngineLane;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::fact::ClientFact;
use evenkeel_core::units::Time;
use evenkeel_identity::robots::{RobotReport, RobotStanding, Robots};
use std::sync::Arc;

/// The result of the check of a request, kept while the request lasts.
pub(crate) enum OwnedStanding {
    None,
    Proven(Box<str>),
    Impostor(Box<str>),
}

impl OwnedStanding {
    pub(crate) fn new(standing: RobotStanding<'_>) -> OwnedStanding {
        match standing {
            RobotStanding::None => OwnedStanding::None,
            RobotStanding::Proven(name) => OwnedStanding::Proven(name.into()),
            RobotStanding::Impostor(name) => OwnedStanding::Impostor(name.into()),
        }
    }

    pub(crate) fn standing(&self) -> RobotStanding<'_> {
        match self {
            OwnedStanding::None => RobotStanding::None,
            OwnedStanding::Proven(name) => RobotStanding::Proven(name),
            OwnedStanding::Impostor(name) => RobotStanding::Impostor(name),
        }
    }
}

impl Engine {
    /// Replaces the robots; `None`: there are none.
    pub fn set_robots(&self, robots: Option<Arc<Robots>>) {
        self.robots.store(robots);
    }

    pub(crate) fn robot_reports(&self) -> Vec<RobotReport> {
        self.robots.load().as_ref().map(|robots| robots.reports()).unwrap_or_default()
    }

    /// The result of the check of a request. Asks [`HostDirectory`] at most once for each robot
    /// that it claims to be.
    ///
    /// [`HostDirectory`]: evenkeel_identity::hosts::HostDirectory
    pub(crate) fn standing<'a>(
        &self,
        robots: &'a Robots,
        request: &impl RequestAttributes,
        now: Time,
    ) -> RobotStanding<'a> {
        let (rules, client) = (self.shards.rules(), request.address().to_canonical());
        let host = || rules.hosts.as_ref()?.known(client, now);
        let signed = request.fact(ClientFact::Bot);
        robots.standing(signed.as_deref(), request.headers("user-agent"), client, now, host)
    }
}

impl EngineLane {
    /// The robots, to verify their signatures; `None` if there are none.
    #[must_use]
    pub fn robots(&self) -> Option<Arc<Robots>> {
        self.0.engine.robots.load_full()
    }
}
