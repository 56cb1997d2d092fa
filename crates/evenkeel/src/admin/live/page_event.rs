//! The event of one second for pages that watch: the load of the doors, the heaviest clients, and
//! the overrides.
//!
//! This is only the format. It belongs to the page (`page/`) and changes with it. Scripts use
//! `/api/top` (`telemetry::snapshot`).

use super::ROWS_PER_LIMIT;
use super::history::HistoryPoint;
use crate::admin::observe;
use crate::admin::override_orders::ShownOverride;
use crate::admin::sources::DoorEngine;
use evenkeel_core::limit::Limit;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::top;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::HeavyClient;
use evenkeel_telemetry::counts::{peers, store};
use evenkeel_telemetry::snapshot::{ClientRow, LoadSnapshot, RefusedConfig, UNIT_CPU};
use serde::Serialize;

#[derive(Serialize)]
pub struct PageEvent {
    /// The time in seconds since the Unix epoch.
    pub now: f64,
    pub version: &'static str,
    /// The host name of this machine.
    pub host: String,
    /// The stage, as `/readyz` reports it.
    pub stage: &'static str,
    pub point: Option<HistoryPoint>,
    pub doors: Vec<DoorLoad>,
    pub limits: Vec<ListedClients>,
    pub overrides: Vec<ShownOverride>,
    pub peers: Option<peers::PeersStatus>,
    pub store: Option<store::StoreStatus>,
    /// A sentence for each robot.
    pub robots: Vec<String>,
    /// The configuration on disk, if it is refused.
    pub refused_config: Option<RefusedConfig>,
}

/// One door with a backend.
#[derive(Serialize)]
pub struct DoorLoad {
    #[serde(flatten)]
    load: LoadSnapshot,
    /// How costs are measured.
    measured: String,
}

/// Returns the load of all doors that have a backend.
pub fn doors(
    engines: &[DoorEngine],
    peers: Option<&peers::PeersStatus>,
    now: Time,
) -> Vec<DoorLoad> {
    let of = |door: &DoorEngine| {
        let work = door.engine.work()?;
        let load = observe::load(door.door, &work, &door.engine.client_times(), peers, now);
        Some(DoorLoad { load, measured: work.measured })
    };
    engines.iter().filter_map(of).collect()
}

/// The heaviest clients of a limit, or of a view that no limit counts by.
#[derive(Serialize)]
pub struct ListedClients {
    pub door: String,
    pub name: String,
    /// The unit, as in [`evenkeel_telemetry::snapshot::Table`].
    pub unit: String,
    /// The action for clients over the limit; empty for a view.
    pub action: String,
    /// Decisions are made but not enforced.
    pub shadow: bool,
    /// Whether operators can override its clients.
    pub open: bool,
    /// The number of examined clients that are in debt.
    pub in_debt: usize,
    pub rows: Vec<ClientRow>,
}

impl ListedClients {
    pub fn of_limit(
        door: &str,
        limiter: &Limiter,
        limit: &Limit,
        standings: Vec<HeavyClient>,
        now: Time,
    ) -> ListedClients {
        let in_debt = |standing: &&HeavyClient| {
            standing.wait > Nanos::ZERO || standing.level.is_some_and(|level| level < 0)
        };
        let in_debt = standings.iter().filter(in_debt).count();
        let rows =
            standings.into_iter().take(ROWS_PER_LIMIT).map(|standing| observe::row(standing, now));
        let action = limit.action(limiter.policy().action);
        let table = observe::table(door, &limit.name, limit.unit, action, rows.collect());
        ListedClients {
            door: table.door,
            name: table.name,
            unit: table.unit,
            action: table.action,
            shadow: table.shadow,
            open: true,
            in_debt,
            rows: table.rows,
        }
    }

    pub fn from_view(
        door: &str,
        name: &str,
        rows: Vec<top::TopClient>,
        now: Time,
    ) -> ListedClients {
        let row = |row| observe::row(HeavyClient::of_view(row), now);
        ListedClients {
            door: door.to_owned(),
            name: name.to_owned(),
            unit: UNIT_CPU.to_owned(),
            action: String::new(),
            shadow: false,
            open: false,
            in_debt: 0,
            rows: rows.into_iter().map(row).collect(),
        }
    }
}
