//! A simulated client: who it says it is, how often it asks, how patient it is.
//!
//! It decides when to ask and when to give up, and knows nothing of limits: what becomes of its
//! requests is up to the `Scene`.

use super::random::Length;
use crate::classify::Attributes;
use crate::units::Nanos;
use alloc::string::String;
use core::net::IpAddr;

/// When a client sends its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A closed loop: so many connections, each of which sends its next request `think` after the
    /// answer to the last.
    Closed {
        /// How many requests at once, at most.
        parallel: u32,
        /// From an answer to the next request.
        think: Length,
    },
    /// An open loop: requests come whatever becomes of those before. The gaps must not all be
    /// zero.
    Open {
        /// From one request to the next.
        gap: Length,
    },
}

/// One client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where its requests come from.
    pub address: IpAddr,
    /// What it calls itself.
    pub agent: String,
    /// What it asks for; always by GET.
    pub path: String,
    /// When it asks.
    pub arrivals: Arrivals,
    /// The CPU time that each request needs.
    pub demand: Length,
    /// How long it waits for an answer before it goes away. `None`: for ever.
    pub patience: Option<Nanos>,
    /// How long a connection of a closed loop rests after a refusal; at least a millisecond.
    pub backoff: Nanos,
    /// From when on it asks, since the start of the simulation.
    pub from: Nanos,
    /// Until when it asks.
    pub until: Nanos,
}

impl Client {
    /// A client that asks for as long as the simulation runs, waits for ever for its answers, and
    /// rests for a second after a refusal.
    #[must_use]
    pub fn new(address: IpAddr, arrivals: Arrivals, demand: Length) -> Client {
        Client {
            address,
            agent: String::from("sim"),
            path: String::from("/"),
            arrivals,
            demand,
            patience: None,
            backoff: Nanos::from_secs(1),
            from: Nanos::ZERO,
            until: Nanos(u64::MAX),
        }
    }
}

impl Attributes for Client {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn vhost(&self) -> &str {
        ""
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "user-agent").then_some(self.agent.as_bytes())
    }
}
