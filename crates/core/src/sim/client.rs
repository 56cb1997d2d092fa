//! A simulated client: its identity, its request rate, its patience.
//!
//! The client decides when to send a request and when to disconnect. It has no access to the
//! limits; the `SimScene` defines what happens to its requests.

use super::random::RandomDuration;
use crate::classify::RequestAttributes;
use crate::units::Nanos;
use alloc::string::String;
use core::net::IpAddr;

/// The times at which a client sends its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A closed loop of `parallel` connections. Each sends its next request `think` after the
    /// response to the previous one.
    Closed {
        /// The maximum number of requests at once.
        parallel: u32,
        /// Time from a response to the next request.
        think: RandomDuration,
    },
    /// An open loop: requests arrive independently of the results of earlier ones. The gaps must
    /// not all be zero.
    Open {
        /// Time from one request to the next.
        gap: RandomDuration,
    },
}

/// A browser: it shows a waiting page, and comes back when the page says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimBrowser {
    /// The part of the visitors that keep their tickets and come back, from 0 to 1. The others are
    /// gone after a waiting page.
    pub keeps: f64,
    /// The number of pages that each visitor asks for, if each request has a new address. Those
    /// that keep no tickets ask for one.
    pub pages: u32,
    /// Time from a page to the next one.
    pub think: RandomDuration,
    /// Whether all visitors that keep tickets use the first of them.
    pub share_ticket: bool,
}

/// A client with its requests.
#[derive(Clone, Debug)]
pub struct SimClient {
    /// The source address of its requests.
    pub address: IpAddr,
    /// Whether each request has a new address, random of all IPv4 addresses, instead.
    pub ever_new: bool,
    /// Whether each request is for another path in the folder of `path`: the same ones in the same
    /// order for all such clients.
    pub new_paths: bool,
    /// The value of its `User-Agent` header.
    pub agent: String,
    /// The path of its requests; the method is always GET.
    pub path: String,
    /// The times of its requests.
    pub arrivals: Arrivals,
    /// CPU time that each request needs.
    pub demand: RandomDuration,
    /// Time that it waits for a response before it disconnects; `None` means for ever.
    pub patience: Option<Nanos>,
    /// Pause of a connection in a closed loop after a refusal; at least a millisecond.
    pub backoff: Nanos,
    /// `None`: the client is no browser, and its requests cannot be answered with a waiting page.
    pub browser: Option<SimBrowser>,
    /// Time of its first requests, since the start of the simulation.
    pub from: Nanos,
    /// Time after which it sends no more requests, since the start of the simulation.
    pub until: Nanos,
}

impl SimClient {
    /// A client that sends requests during the whole simulation, waits for ever for responses, and
    /// pauses for a second after a refusal.
    #[must_use]
    pub fn new(address: IpAddr, arrivals: Arrivals, demand: RandomDuration) -> SimClient {
        SimClient {
            address,
            ever_new: false,
            new_paths: false,
            agent: String::from("sim"),
            path: String::from("/"),
            arrivals,
            demand,
            patience: None,
            backoff: Nanos::from_secs(1),
            browser: None,
            from: Nanos::ZERO,
            until: Nanos(u64::MAX),
        }
    }
}

impl RequestAttributes for SimClient {
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
