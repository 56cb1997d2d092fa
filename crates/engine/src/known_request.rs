//! A request with what the engine knows of its client: its group, its robot and its network.
//!
//! Doors state what a request says. What is known of the client beside that is found here, for all
//! doors alike: the group by its confirmed name (`host_names`), the robot that it is (`robots`),
//! and its AS number and country (`client_network`), with a lookup when a limit or a condition
//! first asks for them.

use crate::client_network::ClientNetwork;
use evenkeel_core::classify::{ModelCall, RequestAttributes};
use evenkeel_core::fact::ClientFact;
use evenkeel_identity::robots::RobotStanding;
use std::borrow::Cow;
use std::net::IpAddr;

/// A request with what is known of its client.
pub(crate) struct KnownRequest<'a, R> {
    request: &'a R,
    /// `None` if the client is in no known group.
    group: Option<&'a str>,
    standing: RobotStanding<'a>,
    network: &'a ClientNetwork<'a>,
}

impl<'a, R: RequestAttributes> KnownRequest<'a, R> {
    /// A request of a client in no group.
    pub(crate) fn new(
        request: &'a R,
        standing: RobotStanding<'a>,
        network: &'a ClientNetwork<'a>,
    ) -> KnownRequest<'a, R> {
        KnownRequest { request, group: None, standing, network }
    }

    /// The same request, of a client in this group.
    pub(crate) fn in_group<'b>(&'b self, group: Option<&'b str>) -> KnownRequest<'b, R> {
        let KnownRequest { request, standing, network, .. } = *self;
        KnownRequest { request, group, standing, network }
    }
}

impl<R: RequestAttributes> RequestAttributes for KnownRequest<'_, R> {
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
        self.group
    }

    fn is_listed(&self, list: &str) -> bool {
        self.network.is_listed(list)
    }

    fn json(&self, pointer: &str) -> Option<Cow<'_, str>> {
        self.request.json(pointer)
    }

    fn model_call(&self) -> Option<ModelCall<'_>> {
        self.request.model_call()
    }

    fn fact(&self, fact: ClientFact) -> Option<Cow<'_, str>> {
        match fact {
            ClientFact::Bot => self.standing.bot().map(Cow::Borrowed),
            ClientFact::Impostor => self.standing.impostor().map(Cow::Borrowed),
            _ => self.network.fact(fact).unwrap_or_else(|| self.request.fact(fact)),
        }
    }
}
