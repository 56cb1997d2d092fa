//! The visitors behind the requests of a simulated browser: what they know of themselves, and
//! whether they come back.
//!
//! A visitor of a client with a fixed address is the client itself. Of a client that has a new
//! address for each request, each request is another visitor, which asks for some more pages later.

use super::client::SimBrowser;
use super::random::SimRandom;
use crate::queue::standing::{Visit, VisitPass, VisitTicket, WaitingRoomEntry};
use crate::units::{Nanos, Time};
use core::net::IpAddr;

/// The upper bound of the random time that a visitor adds before it comes back.
const JITTER_MAX: Nanos = Nanos::from_millis(500);

/// A visitor that asks for a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimVisitor {
    pub address: IpAddr,
    pub visit: Visit,
    /// Whether it keeps its tickets.
    pub keeps: bool,
    /// The number of the page, from 1.
    pub page: u32,
    /// When it first asked for the page.
    pub asked: Time,
    /// Whether it uses no connection of its client's closed loop.
    pub is_beside: bool,
}

impl SimVisitor {
    /// A visitor that asks for its first page.
    pub fn new(
        browser: &SimBrowser,
        address: IpAddr,
        chance: &mut SimRandom,
        now: Time,
    ) -> SimVisitor {
        let keeps = chance.unit() < browser.keeps;
        let visit = Visit::Unknown;
        SimVisitor { address, visit, keeps, page: 1, asked: now, is_beside: false }
    }

    /// The visitor asks for its next page, if there is one.
    pub fn turn_page(&mut self, browser: &SimBrowser, pass: Option<VisitPass>) -> bool {
        self.visit = pass.map_or(self.visit, Visit::Pass);
        self.page += 1;
        self.keeps && self.page <= browser.pages
    }

    /// The visitor gets a waiting page. Returns the time after which it comes back.
    pub fn wait(&mut self, entry: &WaitingRoomEntry, id: u64, chance: &mut SimRandom) -> Nanos {
        if entry.needs_ticket {
            self.visit = Visit::Ticket(VisitTicket { id, first_came: entry.first_came });
        }
        let jitter = Nanos((chance.unit() * JITTER_MAX.0 as f64) as u64);
        entry.come_back_after.plus(jitter)
    }
}
