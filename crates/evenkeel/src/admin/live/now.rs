//! The event of one second for pages that watch: the load of the doors, the heaviest clients, and
//! the overrides.
//!
//! This is only the format. It belongs to the page (`page/`) and changes with it. Scripts use
//! `/api/top` (`watch::snapshot`).

use super::ROWS;
use super::history::Point;
use crate::admin::act::Shown;
use crate::admin::{DoorEngine, observe};
use evenkeel_core::limit::Limit;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::top;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::Standing;
use evenkeel_telemetry::counts::{peers, store};
use evenkeel_telemetry::snapshot::{Load, Row, UNIT_CPU};
use serde::Serialize;

/// The whole event.
#[derive(Serialize)]
pub struct Now {
    /// The time in seconds since the Unix epoch.
    pub now: f64,
    pub version: &'static str,
    /// The host name of this machine.
    pub host: String,
    /// The stage, as `/readyz` reports it.
    pub stage: &'static str,
    pub point: Option<Point>,
    pub doors: Vec<Door>,
    pub limits: Vec<Listed>,
    pub overrides: Vec<Shown>,
    pub peers: Option<peers::Report>,
    pub store: Option<store::Report>,
}

/// One door with a backend.
#[derive(Serialize)]
pub struct Door {
    #[serde(flatten)]
    load: Load,
    /// How costs are measured.
    measured: String,
}

/// Returns the load of all doors that have a backend.
pub fn doors(engines: &[DoorEngine]) -> Vec<Door> {
    let of = |door: &DoorEngine| {
        let work = door.engine.work()?;
        Some(Door { load: observe::load(door.door, &work), measured: work.measured })
    };
    engines.iter().filter_map(of).collect()
}

/// The heaviest clients of a limit, or of a view that no limit counts by.
#[derive(Serialize)]
pub struct Listed {
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
    pub rows: Vec<Row>,
}

impl Listed {
    pub fn of_limit(
        door: &str,
        limiter: &Limiter,
        limit: &Limit,
        standings: Vec<Standing>,
        now: Time,
    ) -> Listed {
        let in_debt = |standing: &&Standing| {
            standing.wait > Nanos::ZERO || standing.level.is_some_and(|level| level < 0)
        };
        let in_debt = standings.iter().filter(in_debt).count();
        let rows = standings.into_iter().take(ROWS).map(|standing| observe::row(standing, now));
        let table = observe::table(door, limiter.policy().action, limit, rows.collect());
        Listed {
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

    pub fn of_view(door: &str, name: &str, rows: Vec<top::Row>, now: Time) -> Listed {
        let row = |row| observe::row(Standing { row, level: None, wait: Nanos::ZERO }, now);
        Listed {
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
