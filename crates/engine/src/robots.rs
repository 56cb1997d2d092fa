//! Requests with the robot that they are of: what the engine is told of a request, and the facts
//! `bot` and `impostor` beside it.
//!
//! What proves a robot is decided in `identity::robots`. A door verifies signatures, because they
//! cover more of a request than the engine knows; it states the signer as the fact `bot`.

use crate::client_network::ClientNetwork;
use crate::engine::Engine;
use crate::lane::EngineLane;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::fact::ClientFact;
use evenkeel_core::units::Time;
use evenkeel_identity::robots::{RobotReport, RobotStanding, Robots};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

/// A request together with the robot that it is of, and with what is known of its client's network.
pub(crate) struct IdentifiedRequest<'a, R> {
    pub(crate) request: &'a R,
    pub(crate) standing: RobotStanding<'a>,
    pub(crate) network: ClientNetwork<'a>,
}

impl<R: RequestAttributes> RequestAttributes for IdentifiedRequest<'_, R> {
    fn address(&self) -> IpAddr {
        self.request.address()
    }

    fn method(&self) -> &str {
        self.request.method()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn vhost(&self) -> &str {
        self.request.vhost()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.header(name)
    }

    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.request.headers(name)
    }

    fn query(&self) -> &str {
        self.request.query()
    }

    fn group(&self) -> Option<&str> {
        self.request.group()
    }

    fn fact(&self, fact: ClientFact) -> Option<Cow<'_, str>> {
        match fact {
            ClientFact::Bot => self.standing.bot().map(Cow::Borrowed),
            ClientFact::Impostor => self.standing.impostor().map(Cow::Borrowed),
            _ => self.network.fact(fact).unwrap_or_else(|| self.request.fact(fact)),
        }
    }
}

/// What a request was found to be, for as long as the request lasts.
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

    /// What a request is found to be. Asks [`HostDirectory`] at most once for each robot that it
    /// claims to be.
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
        robots.standing(signed.as_deref(), request.header("user-agent"), client, now, host)
    }
}

impl EngineLane {
    /// The robots, to verify their signatures; `None` if there are none.
    #[must_use]
    pub fn robots(&self) -> Option<Arc<Robots>> {
        self.0.engine.robots.load_full()
    }
}
