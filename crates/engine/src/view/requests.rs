//! The engine of requests as the admin door sees it, with the overrides that operators set there.
//!
//! The lists of all lanes are merged here. None of this is on the path of a request. Lanes are
//! locked one at a time.

use super::client_times::ClientTimes;
use super::overrides::{Override, OverrideIndex, OverridesFullError};
use super::views::{TopViews, VIEW_NAMES};
use super::{
    BackendLoad, CLIENT_GONE_AFTER, EngineView, HeavyClient, SHOWN_MAX, count_held, with_levels,
};
use crate::client_network::ClientNetwork;
use crate::engine::Engine;
use evenkeel_core::fact::ClientFact;
use evenkeel_core::key::KeyHash;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::queue::{ClientHistory, WorkUnit};
use evenkeel_core::top::{TopClient, TopClients};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::robots::RobotReport;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

/// The number of rows to read from each lane for each row of the merged list.
const LANE_ROWS: usize = 4;

impl Engine {
    /// The merged list of all lanes, with at most `max` rows and no more than one lane may have.
    fn rows(&self, index: usize, max: usize) -> Vec<TopClient> {
        // A client among the heaviest of all lanes together may be lower in the list of each lane.
        let mut rows = self.shards.rows(index, max.saturating_mul(LANE_ROWS));
        rows.truncate(self.shards.rules().names_max.min(max));
        rows
    }

    /// The group of a client with this name, and its network, if the name is an address.
    fn origin(&self, name: &str, now: Time) -> (Option<String>, [Option<String>; 2]) {
        let Ok(address) = name.parse::<IpAddr>() else { return (None, [None, None]) };
        let rules = self.shards.rules();
        let group = rules.group(rules.known(address, now)).map(str::to_owned);
        let network = ClientNetwork::new(address, self.networks());
        let fact = |fact| network.fact(fact).flatten().map(Cow::into_owned);
        (group, [fact(ClientFact::Asn), fact(ClientFact::Country)])
    }

    /// The name of a client under the first limit.
    fn first_name(&self, hash: KeyHash) -> Option<String> {
        let mut name = None;
        self.shards.for_each(|lane| {
            if name.is_none() {
                name = lane.tops.first().and_then(|top| top.name(hash));
            }
        });
        name
    }

    /// Copies the overrides to all lanes. Lock order: `overrides` is locked.
    fn publish(&self, in_force: OverrideIndex) {
        self.shards.for_each(|lane| lane.own.in_force.clone_from(&in_force));
    }
}

impl EngineView for Engine {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(&self.shards.rules().limiter)
    }

    fn client_history(&self) -> Option<ClientHistory> {
        self.gate.client_history()
    }

    fn work(&self) -> Option<BackendLoad> {
        let (working, clock) = self.load();
        let unpaid = self.meter(self.shards.clock.now()).unpaid();
        let rules = self.shards.rules();
        let (cpus, measured) = (rules.cpus, rules.cost.to_string());
        let (crowd, visitors) = (self.admission_stats(), self.visitor_stats());
        let open = self.open_requests(SHOWN_MAX);
        let burning = self.burning();
        let shared = self.shared_queue_report();
        let unit = rules.cost.unit();
        let busy = match unit {
            WorkUnit::CpuTime => clock,
            // The clock of the meter does not count tokens.
            WorkUnit::Tokens => self.watch.tiers.progress(),
        };
        Some(BackendLoad {
            working,
            is_slots: false,
            unit,
            measures_rate: rules.measures_rate,
            rate: self.gate.work_rate(),
            busy,
            unpaid,
            cpus,
            crowd,
            shared,
            visitors,
            burning,
            open,
            reports: self.backend_reports(),
            measured,
        })
    }

    fn top(&self, index: usize) -> Vec<HeavyClient> {
        self.heaviest(index, usize::MAX)
    }

    fn heaviest(&self, index: usize, max: usize) -> Vec<HeavyClient> {
        let (rows, now) = (self.rows(index, max), self.shards.clock.now());
        with_levels(&self.shards.rules().limiter, index, rows, now)
    }

    fn describe(&self, clients: &mut [HeavyClient]) {
        self.shards.for_each(|lane| {
            for HeavyClient { row, about, .. } in clients.iter_mut() {
                for (place, name) in about.usual.iter_mut().enumerate() {
                    let key = row.usual[place].filter(|_| name.is_none());
                    *name = name.take().or_else(|| lane.own.views.name(place, key?));
                }
            }
        });
        let now = self.shards.clock.now();
        for HeavyClient { row, about, .. } in clients {
            (about.group, about.network) = self.origin(&row.name, now);
        }
    }

    fn client_times(&self) -> ClientTimes {
        let now = self.shards.clock.now();
        let mut answers = Vec::new();
        self.shards.for_each(|lane| {
            if let Some(top) = lane.tops.first() {
                answers.extend(top.answers(now.minus(CLIENT_GONE_AFTER), now));
            }
        });
        ClientTimes::new(answers.into_iter(), |hash| self.first_name(hash))
    }

    fn clients_held(&self, index: usize, above: Nanos) -> Option<usize> {
        let now = self.shards.clock.now();
        Some(count_held(&self.rows(index, usize::MAX), above, now))
    }

    fn shadows(&self, index: usize) -> bool {
        let rules = self.shards.rules();
        rules.shadow || rules.limiter.limits().get(index).is_some_and(|limit| limit.shadow)
    }

    fn robots(&self) -> Vec<RobotReport> {
        self.robot_reports()
    }

    fn views(&self, max: usize) -> Vec<(&'static str, Vec<TopClient>)> {
        let now = self.shards.clock.now();
        let of_each = max.saturating_mul(LANE_ROWS);
        let view = |(place, name): (usize, &&'static str)| {
            let mut lists = Vec::new();
            let list = |views: &TopViews| views.heaviest(place, of_each, now);
            self.shards.for_each(|lane| lists.push(list(&lane.own.views)));
            let mut rows = TopClients::merge(lists);
            rows.truncate(max);
            (*name, rows)
        };
        VIEW_NAMES.iter().enumerate().map(view).collect()
    }

    fn overrides(&self) -> Option<Vec<Override>> {
        Some(self.overrides.list())
    }

    fn set_override(&self, said: Override) -> Result<Override, OverridesFullError> {
        self.overrides.say(said, |in_force| self.publish(in_force))
    }

    fn remove_override(&self, id: u64) -> Option<Override> {
        self.overrides.undo(id, |in_force| self.publish(in_force))
    }

    fn end_overrides(&self) -> Vec<Override> {
        self.overrides.end(self.shards.clock.now(), |in_force| self.publish(in_force))
    }
}
